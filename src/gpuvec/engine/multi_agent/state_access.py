"""The state of many agents: where its fields are while a kernel runs, and the functions that read, load, copy and store them.

Fields with elements for each agent are in shared memory if the launch stages the state, else in their buffers. Scalars are
always in shared memory, as row `k` of one array for each dtype. The work has few arrays, because each of them is passed to
every function as seven values.

The source of functions over fields is generated, because Numba has no loop over fields of different types. It has no control
flow. Letters: e an env, k its index in the block, c the number of an element of a field.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.block_copies import REGISTERS_IN_FLIGHT, BlockCopy, CopyLaunch, WordType
from gpuvec.engine.compiler.functions import bind, call_source, device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, DType, Work
from gpuvec.engine.layout.buffers import MAX_WORD_BYTES, Buffer, max_word_bytes
from gpuvec.engine.layout.rng_streams import POOL_DRAW
from gpuvec.engine.layout.schema import ENGINE_FIELDS, PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, Segment
from gpuvec.random import randint

# The layout of the state of many agents while a kernel runs: which fields are in shared memory, and at which offsets.
#
# Fields with elements for each agent are in shared memory if the launch stages the state, else in their buffers. Scalars are
# always in shared memory, as row `k` of one array for each dtype. The work has few arrays, because each of them is passed to
# every function as seven values.


# Columns of `w.status`, int32 for each env of the block. RNG_STREAM is the first of four words of its random-number stream,
# VOTES_AGAINST counts agents that vote against the end of the episode, and the counters of reductions begin at COUNTERS.
START, TIME, AWAITS_RESET, CLOCK, RNG_STREAM, HAS_ENDED, VOTES_AGAINST, COUNTERS = 0, 1, 2, 3, 4, 8, 9, 10

WorkArrays = dict[str, tuple[DType, tuple[int, ...]]]  # {name in the work: (dtype, shape)}


class PackedField(NamedTuple):
    """A field with one element for each agent, in a buffer that holds all such fields of one dtype, env by env."""

    buffer: str  # name of the buffer in the batch
    num_fields: int  # number of fields in the buffer
    number: int  # index of this field among them


class StateLayout(NamedTuple):
    """The locations of fields with several elements, and of scalars."""

    searched: tuple[str, ...]  # fields that the first kernel's search fills before every observation
    staged: dict[str, Buffer]  # fields in shared memory
    changing: dict[str, Buffer]  # fields of the agents that a step may change and the next step reads
    offsets: dict[str, int]  # {staged field: its first element in the array of its dtype}
    sizes: dict[DType, int]  # {dtype: number of elements of its array}
    packed: dict[str, PackedField]  # fields that share a buffer with others
    scalar_columns: dict[str, str]  # {scalar: source of its element, with {} for the index of the env in the block}
    arrays_with_words: frozenset[str]  # arrays of the work that threads access in words of `MAX_WORD_BYTES`, their alignment


def make_state_layout(ctx: MultiAgentContext) -> StateLayout:
    """Computes the layout for the launch of a context `ctx`."""
    searched = (ctx.schema.search.field,) if ctx.schema.search and not ctx.launch.split else ()
    own = {k: b for k, b in ctx.schema.array_fields.items() if k not in ctx.schema.search_fields or k in searched}
    # If several blocks share a multiprocessor, this field stays in its buffer: all agents read the same few elements of it.
    unstaged = ("agents_by_role",) if ctx.launch.min_blocks_per_sm > 1 else ()
    staged = {k: b for k, b in own.items() if k not in unstaged} if ctx.launch.stage_state else {}
    num_states = ctx.launch.envs_per_block + ctx.num_final_copies
    sizes, offsets = dict.fromkeys(PACKED_BUFFERS, 0), {}
    for name, b in staged.items():
        if name in ctx.schema.set_fields:
            word = MAX_WORD_BYTES // np.dtype(b.dtype).itemsize
            sizes[b.dtype] = -(-sizes[b.dtype] // word) * word
        offsets[name] = sizes[b.dtype]
        sizes[b.dtype] += num_states * int(np.prod(b.shape))
    columns: dict[str, str] = {}  # each scalar is a column of the array of its dtype
    dtypes = list(ctx.schema.scalar_fields.values())
    for number, (name, dtype) in enumerate(ctx.schema.scalar_fields.items()):
        columns[name] = f"w.scalar_{PACKED_BUFFERS[dtype]}[{{}}, {dtypes[:number].count(dtype)}]"
    return StateLayout(
        searched=searched,
        staged=staged,
        changing={k: b for k, b in ctx.schema.agent_fields.items() if k in own and k not in (*searched, *ENGINE_FIELDS)},
        offsets=offsets,
        sizes={dtype: size for dtype, size in sizes.items() if size},
        packed={k: PackedField(name, len(ks), ks.index(k)) for name, ks in ctx.schema.packed_fields.items() for k in ks},
        scalar_columns=columns,
        arrays_with_words=frozenset(PACKED_BUFFERS[b.dtype] for k, b in staged.items() if k in ctx.schema.set_fields),
    )


# The source of a random row of the reset pool. `key` is that of a reset, so that all fields come from one row.
POOL_ROW = "randint(key, POOL_DRAW, 0, load(b.pool_size, 0, i32))"


class StateAccess(NamedTuple):
    """The compiled functions for one context.

    Their arguments are the batch `b`, the work `w`, an env `e`, its index `k` in the block, and an agent `i` of the env. Copies
    of final states in shared memory begin at index `num_final_copies`, which is the number of envs of a block.
    """

    layout: StateLayout
    state: DeviceFunction  # state(b, w, e, k) -> the state of env e, for the author's functions
    from_global: DeviceFunction  # from_global(b, e) -> the state in global memory, for the other kernels
    load_final: DeviceFunction  # load_final(b, e) -> the last state of an episode that ended in this step, in global memory
    current_or_final: DeviceFunction  # current_or_final(b, e, is_final) -> one of the two above
    load_to_shared: DeviceFunction  # of a segment of AGENTS: loads agent i's elements from global memory
    store_to_global: DeviceFunction  # of a segment of AGENTS: stores agent i's elements to global memory
    load_scalars: DeviceFunction  # load_scalars(b, w, e, k): loads them from global memory
    store_scalars: DeviceFunction  # of a segment of ENVS: stores them to global memory
    save_final: DeviceFunction  # save_final(b, w, e, k, i, key, p): saves agent i's elements for `load_final`
    save_final_scalars: DeviceFunction  # save_final_scalars(b, w, e, k): saves the scalars for `load_final`
    clear_scalars: DeviceFunction  # clear_scalars(w, k): sets the scalars to 0
    stage_copy: DeviceFunction  # stage_copy(w, k, i): copies agent i's elements to index k + num_final_copies
    stage_scalars: DeviceFunction  # stage_scalars(w, k): copies the scalars and the time to index k + num_final_copies
    set_from_pool: DeviceFunction  # set_from_pool(b, s, i, key): sets agent i's elements from a random state of the pool
    role: DeviceFunction  # role(s, i) -> the index of agent i's role


class _FieldFunctions:
    """Generates and compiles functions over the fields of a state."""

    def __init__(self, ctx: MultiAgentContext, layout: StateLayout) -> None:
        self.ctx, self.layout, self.num_agents = ctx, layout, ctx.num_agents
        self.scope = {
            "State": ctx.env.state,
            "load": ctx.ops.load,
            "store": ctx.ops.store,
        }
        self.scope |= {"A": self.num_agents, "as_agents": ctx.array_ops.assume_below(self.num_agents), "i32": np.int32}
        self.scope |= {"randint": device_function(randint), "POOL_DRAW": POOL_DRAW}
        self.scope |= {f"t_{name}": b.dtype for name, b in ctx.schema.array_fields.items()}
        self.scope |= {f"view_{name}": ctx.array_ops.view(b.shape) for name, b in ctx.schema.array_fields.items()}
        self.scope |= {f"subarray_{name}": ctx.array_ops.subarray(b.shape) for name, b in ctx.schema.array_fields.items()}
        self.scope |= {f"t_{name}": dtype for name, dtype in ctx.schema.scalar_fields.items()}

    def function(self, name: str, arguments: str, lines: list[str]) -> DeviceFunction:
        """The function with that name, these arguments and these lines."""
        body = "".join(f"    {line}\n" for line in lines) or "    pass\n"
        return inline_function(generate_function(name, f"def {name}({arguments}):\n{body}", **self.scope))

    def state_function(self, name: str, arguments: str, values: dict[str, str]) -> DeviceFunction:
        """The function that returns a state with fields of these `values`, {field: source}."""
        if "agents_by_role" in values:
            values = values | {"agents_by_role": f"as_agents({values['agents_by_role']})"}
        fields = [values[name] for name in self.ctx.env.state._fields]
        return self.function(name, arguments, [f"return {call_source('State', fields)}"])

    def global_state(self, name: str, arguments: str, address: str) -> DeviceFunction:
        """The function that returns a state in global memory.

        `address` is the source of an address, with {current} and {final} for the names of the buffers.
        """
        schema = self.ctx.schema
        buffers = {k: address.format(current=f"state_{k}", final=f"final_state_{k}") for k in schema.stored_scalars}
        scalars = {k: f"load({buffers[k]}, e, t_{k})" if k in buffers else f"t_{k}(0)" for k in schema.scalar_fields}
        return self.state_function(name, arguments, self.global_views(address) | scalars)

    def global_views(self, address: str) -> dict[str, str]:
        """{field: source of a view of its elements of env e}, in global memory; `address` as for `global_state`."""
        addresses = {k: address.format(current=f"state_{k}", final=f"final_state_{k}") for k in self.ctx.schema.array_fields}
        views = {k: f"view_{k}({source}, e, t_{k})" for k, source in addresses.items()}
        for field, (name, num_fields, number) in self.layout.packed.items():
            # The engine's fields never change.
            source = address.format(current=name, final=name if field in ENGINE_FIELDS else f"final_{name}")
            views[field] = f"view_{field}({source}, e * {num_fields} + {number}, t_{field})"
        return views

    def each_element(self, fields: dict[str, Buffer], template: str, from_pool: bool = False) -> list[str]:
        """Lines of source, one for each element of agent i.

        Common parts of indices are computed once, because each sum takes time to compile.

        Args:
            fields: the fields.
            template: the line, with {field}, {buffer} and {final} for names, {index} for the index in a buffer, {shared} for
                the element in shared memory, {copy} for its copy, and {element} for that of the state `s`.
            from_pool: whether the buffers are those of a reset pool, in which no fields share a buffer.
        """
        common: dict[str, str] = {}
        lines = []
        for field, b in fields.items():
            shares_buffer = field in self.layout.packed
            is_packed = shares_buffer and not from_pool
            buffer, num_fields, number = self.layout.packed[field] if is_packed else (f"state_{field}", 1, 0)
            width = b.shape[1] if len(b.shape) > 1 else 1
            common |= {f"v{num_fields}": f"e * {num_fields * self.num_agents} + i"} if "{index}" in template else {}
            common |= {"u": f"k * {self.num_agents} + i"} if "{shared}" in template else {}
            index, agent = (f"{name} * {width}" if width > 1 else name for name in (f"v{num_fields}", "u"))
            for column in range(width):
                offset = self.layout.offsets.get(field, 0) + column
                copy_offset = offset + self.ctx.num_final_copies * self.num_agents * width
                lines.append(
                    template.format(
                        field=field,
                        buffer=buffer,
                        final=f"final_{buffer}",
                        index=f"{index} + {number * self.num_agents + column}",
                        shared=f"w.{PACKED_BUFFERS[b.dtype]}[{agent} + {offset}]",
                        copy=f"w.{PACKED_BUFFERS[b.dtype]}[{agent} + {copy_offset}]",
                        element=f"s.{field}[i, {column}]" if len(b.shape) > 1 else f"s.{field}[i]",
                    )
                )
        return [*(f"{name} = {value}" for name, value in common.items()), *lines]


# Sources of the address of a buffer. They select between addresses, not between views: the compiler would not know whether a
# selected view is in global or in shared memory.
CURRENT, FINAL, CURRENT_OR_FINAL = "b.{current}", "b.{final}", "(b.{final} if is_final else b.{current})"


def make_state_access(ctx: MultiAgentContext) -> StateAccess:
    """Compiles the functions for the launch of a context `ctx`."""
    layout = make_state_layout(ctx)
    generator = _FieldFunctions(ctx, layout)
    # The staged fields of the agents that a kernel loads when it begins
    loaded = {k: b for k, b in layout.staged.items() if k not in layout.searched and k not in ctx.schema.set_fields}
    scalars = {name: column.format("k") for name, column in layout.scalar_columns.items()}
    stored = {name: column for name, column in scalars.items() if name in ctx.schema.stored_scalars}
    element = "{shared}" if layout.staged else "load(b.{buffer}, {index}, t_{field})"
    load_to_shared = generator.each_element(loaded, "{shared} = load(b.{buffer}, {index}, t_{field})")
    if ctx.num_final_copies:
        unchanging = {name: b for name, b in loaded.items() if name not in layout.changing}
        load_to_shared += generator.each_element(unchanging, "{copy} = {shared}")
    staged_columns = [*layout.scalar_columns.values(), f"w.status[{{}}, {TIME}]"]
    copy_lines = [f"{column.format(f'{ctx.num_final_copies} + k')} = {column.format('k')}" for column in staged_columns]
    zeros = {name: dtype(0).item() for name, dtype in ctx.schema.scalar_fields.items()}
    views = {
        name: f"subarray_{name}(w.{PACKED_BUFFERS[b.dtype]}, {layout.offsets[name]} + k * {math.prod(b.shape)})"
        for name, b in layout.staged.items()
    }
    pool_fields = {name: b for name, b in ctx.schema.array_fields.items() if name in ctx.options.pool}
    from_pool = [f"e = {POOL_ROW}"] if pool_fields else []
    from_pool += generator.each_element(pool_fields, "{element} = load(b.pool_{field}, {index}, t_{field})", from_pool=True)
    # The number of agent i's role: that of a field, or how many other roles begin before the agent
    role = " + ".join(f"(i >= {part.first_agent})" for part in ctx.schema.parts[1:]) or "0"
    segment_arguments = "b, w, e, k, i, clock"
    return StateAccess(
        layout=layout,
        state=generator.state_function("state", "b, w, e, k", generator.global_views(CURRENT) | views | scalars),
        from_global=generator.global_state("from_global", "b, e", CURRENT),
        load_final=generator.global_state("load_final", "b, e", FINAL),
        current_or_final=generator.global_state("current_or_final", "b, e, is_final", CURRENT_OR_FINAL),
        load_to_shared=generator.function("load_to_shared", segment_arguments, load_to_shared),
        store_to_global=generator.function(
            "store_to_global",
            segment_arguments,
            generator.each_element(layout.changing, "store(b.{buffer}, {index}, {shared}, t_{field})"),
        ),
        load_scalars=generator.function(
            "load_scalars", "b, w, e, k", [f"{column} = load(b.state_{k}, e, t_{k})" for k, column in stored.items()]
        ),
        store_scalars=generator.function(
            "store_scalars", segment_arguments, [f"store(b.state_{k}, e, {column}, t_{k})" for k, column in stored.items()]
        ),
        save_final=generator.function(
            "save_final",
            "b, w, e, k, i, key, p",
            generator.each_element(layout.changing, f"store(b.{{final}}, {{index}}, {element}, t_{{field}})"),
        ),
        save_final_scalars=generator.function(
            "save_final_scalars",
            "b, w, e, k",
            [f"store(b.final_state_{k}, e, {column}, t_{k})" for k, column in stored.items()],
        ),
        clear_scalars=generator.function("clear_scalars", "w, k", [f"{scalars[k]} = {zero!r}" for k, zero in zeros.items()]),
        stage_copy=generator.function("stage_copy", "w, k, i", generator.each_element(layout.changing, "{copy} = {shared}")),
        stage_scalars=generator.function("stage_scalars", "w, k", copy_lines),
        set_from_pool=generator.function("set_from_pool", "b, s, i, key", from_pool),
        role=generator.function("role", "s, i", [f"return {'s.role[i]' if ctx.schema.has_role_field else role}"]),
    )


# Functions of the elements of fields of index sets other than the agents: they save final values, and read the reset pool.
#
# Letters: e an env, k its index in the block, c the number of an element of a field.


def save_final_segments(ctx: MultiAgentContext, condition: DeviceFunction) -> list[Segment]:
    """Compiles the segments that save the last values of an episode for the kernel that writes final observations.

    Args:
        ctx: the context.
        condition: `condition(w, k)` -> whether the episode of env k of the block ended.
    """
    if not (ctx.launch.split and ctx.options.same_step):
        return []
    segments = []
    for field, buffer in ctx.schema.set_fields.items():
        size = math.prod(buffer.shape)
        in_buffer, is_staged = f"load(b.state_{field}, e * {size} + c, t)", ctx.launch.stage_state
        element = _element_source(ctx, field, buffer) if is_staged else in_buffer
        source = "def save(b, w, e, k, c, clock):\n"
        source += f"    if condition(w, k): store(b.final_state_{field}, e * {size} + c, {element}, t)\n"
        scope = {"load": ctx.ops.load, "store": ctx.ops.store, "t": buffer.dtype, "condition": condition}
        save = inline_function(generate_function("save", source, **scope))
        segments.append(Segment(AGENTS, save, barrier=False, num_elements=size))
    return segments


def pool_element(ctx: MultiAgentContext, field: str) -> DeviceFunction:
    """Compiles `set_from_pool(b, w, e, k, c, key, p)`: sets element c of a field from a random state of the reset pool.

    Args:
        ctx: the context.
        field: the name of the field.
    """
    buffer = ctx.schema.set_fields[field]
    size = math.prod(buffer.shape)
    if ctx.launch.stage_state:
        write = f"{_element_source(ctx, field, buffer)} = value"
    else:
        write = f"store(b.state_{field}, e * {size} + c, value, t)"
    lines = [f"value = load(b.pool_{field}, q * {size} + c, t)", write]
    return _set_from_pool(ctx, lines, store=ctx.ops.store, t=buffer.dtype)


def pool_scalars(ctx: MultiAgentContext) -> DeviceFunction | None:
    """Compiles `set_from_pool(b, w, e, k, c, key, p)`: sets the scalars that the reset pool holds, from a random state of it.

    It is None if the pool holds none. `key` is the key of a reset, so that all fields come from one state.

    Args:
        ctx: the context.
    """
    scalars = {name: dtype for name, dtype in ctx.schema.stored_scalars.items() if name in ctx.options.pool}
    if not scalars:
        return None
    columns = ctx.access.layout.scalar_columns
    lines = [f"{columns[name].format('k')} = load(b.pool_{name}, q, t_{name})" for name in scalars]
    return _set_from_pool(ctx, lines, **{f"t_{name}": dtype for name, dtype in scalars.items()})


def _set_from_pool(ctx: MultiAgentContext, lines: list[str], **scope: Any) -> DeviceFunction:
    """`set_from_pool(b, w, e, k, c, key, p)`, which runs lines for a random row `q` of the reset pool."""
    source = f"def set_from_pool(b, w, e, k, c, key, p):\n    q = {POOL_ROW}\n" + "".join(f"    {line}\n" for line in lines)
    scope |= {"randint": device_function(randint), "POOL_DRAW": POOL_DRAW, "load": ctx.ops.load, "i32": np.int32}
    return inline_function(generate_function("set_from_pool", source, **scope))


def _element_source(ctx: MultiAgentContext, field: str, buffer: Buffer) -> str:
    """The source of element c of a field in shared memory."""
    return f"w.{PACKED_BUFFERS[buffer.dtype]}[{ctx.access.layout.offsets[field]} + k * {math.prod(buffer.shape)} + c]"


# Which copies between global and shared memory share a segment, in which all loads of a thread precede all stores.
#
# If a thread has several words of fewer than 16 bytes, copies are unrolled over all words of a thread, and those that take few
# registers are joined into one segment. Otherwise each copy is a loop, in which up to four words of a thread are in flight.


def copy_segments(ctx: MultiAgentContext, copies: list[BlockCopy], store: DeviceFunction | None = None) -> list[Segment]:
    """Compiles segments without barriers that run the copies.

    Args:
        ctx: the context.
        copies: the copies.
        store: `store(w, x, value)`, which stores word x of a block for copies without an array.
    """
    launch, groups = CopyLaunch(ctx.launch.envs_per_block, ctx.launch.threads_per_block), [[copy] for copy in copies]
    # Words of 16 bytes keep enough bytes in flight in a loop. Breakout and ConnectFour were slower with unrolled copies.
    if any(copy.word.num_bytes < MAX_WORD_BYTES and launch.words_of_block(copy) > launch.threads for copy in copies):
        launch, groups = launch._replace(is_unrolled=True), _groups(copies, launch)
    copies_of_segments = (ctx.array_ops.block_copies(tuple(group), launch) for group in groups)
    functions = (bind(run_copies, copy_words=copy_words, store_word=store) for copy_words in copies_of_segments)
    return [Segment(BLOCK, function, barrier=False) for function in functions]


def _groups(copies: list[BlockCopy], launch: CopyLaunch) -> list[list[BlockCopy]]:
    """The copies that share a segment, because registers hold all of their words."""
    groups: list[list[BlockCopy]] = []
    for copy in copies:
        joined = [*groups[-1], copy] if groups else []
        registers = sum(launch.words_of_thread(part) * part.word.num_registers for part in joined)
        if groups and registers <= REGISTERS_IN_FLIGHT:
            groups[-1] = joined
        else:
            groups.append([copy])
    return groups


# What the function below reads: the copies of a segment, and the function that stores words without an array.
copy_words: Any = None
store_word: Any = None


def run_copies(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Runs the copies of a segment."""
    copy_words(b, w, e0, m, thread, store_word)


# Copies of the fields of index sets between global and shared memory, for all envs of a block at once.
#
# The elements of the envs of a block follow each other in both memories. So neighboring threads copy neighboring words of up to
# 16 bytes, whatever the dtype of a field is.


WORDS = {
    16: WordType(np.uint32, 4),
    8: WordType(np.uint32, 2),
    4: WordType(np.uint32),
    2: WordType(np.uint16),
    1: WordType(np.uint8),
}


def set_copy_segments(ctx: MultiAgentContext, is_load: bool) -> list[Segment]:
    """Compiles segments without barriers that copy the fields of sets; none if the launch leaves the state in its buffers.

    Args:
        ctx: the context.
        is_load: whether the fields are copied from global to shared memory; otherwise from shared to global memory.
    """
    copies = []
    for field, buffer in ctx.schema.set_fields.items() if ctx.launch.stage_state else ():
        env_bytes = math.prod(buffer.shape) * np.dtype(buffer.dtype).itemsize
        # A block begins at a word of this size, as those before it have whole words. The last block may have fewer envs, and so
        # bytes behind its last whole word.
        word_bytes = max_word_bytes(ctx.launch.envs_per_block * env_bytes)
        rest_bytes = max_word_bytes(env_bytes)
        copy = BlockCopy(
            buffer=f"state_{field}",
            env_bytes=env_bytes,
            word=WORDS[word_bytes],
            rest_word=WORDS[rest_bytes] if word_bytes > rest_bytes else None,
            array=PACKED_BUFFERS[buffer.dtype],
            offset=ctx.access.layout.offsets[field],
            is_load=is_load,
        )
        copies.append(copy)
    return copy_segments(ctx, copies)
