"""The compiled functions that read, load and store the state of many agents.

Their source is generated, because Numba has no loop over fields of different types. It has no control flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import call_source, device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.rng_streams import POOL_DRAW
from gpuvec.engine.layout.schema import ENGINE_FIELDS, PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.state_layout import TIME, StateLayout, make_state_layout
from gpuvec.random import randint

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
    load_to_shared: DeviceFunction  # load_to_shared(b, w, e, k, i): loads agent i's elements from global memory
    store_to_global: DeviceFunction  # store_to_global(b, w, e, k, i): stores agent i's elements to global memory
    load_scalars: DeviceFunction  # load_scalars(b, w, e, k): loads them from global memory
    store_scalars: DeviceFunction  # store_scalars(b, w, e, k): stores them to global memory
    save_final: DeviceFunction  # save_final(b, w, e, k, i): saves agent i's elements for `load_final`
    save_final_scalars: DeviceFunction  # save_final_scalars(b, w, e, k): saves the scalars for `load_final`
    clear_scalars: DeviceFunction  # clear_scalars(w, k): sets the scalars to 0
    stage_copy: DeviceFunction  # stage_copy(w, k, i): copies agent i's elements to index k + num_final_copies
    stage_scalars: DeviceFunction  # stage_scalars(w, k): copies the scalars and the time to index k + num_final_copies
    set_from_pool: DeviceFunction  # set_from_pool(b, s, i, key): sets agent i's elements from a random state of the pool
    role: DeviceFunction  # role(s, i) -> the index of agent i's role


class _FieldFunctions:
    """Generates and compiles functions over the fields of a state."""

    def __init__(self, ctx: MultiAgentContext, layout: StateLayout) -> None:
        schema, ops, array_ops = ctx.schema, ctx.ops, ctx.array_ops
        self.ctx, self.layout, self.num_agents = ctx, layout, ctx.num_agents
        self.scope = {
            "State": ctx.env.state,
            "load": ops.load,
            "store": ops.store,
        }
        self.scope |= {"A": self.num_agents, "as_agents": array_ops.assume_below(self.num_agents), "i32": np.int32}
        self.scope |= {"randint": device_function(randint), "POOL_DRAW": POOL_DRAW}
        self.scope |= {f"t_{name}": b.dtype for name, b in schema.array_fields.items()}
        self.scope |= {f"view_{name}": array_ops.view(b.shape) for name, b in schema.array_fields.items()}
        self.scope |= {f"subarray_{name}": array_ops.subarray(b.shape) for name, b in schema.array_fields.items()}
        self.scope |= {f"t_{name}": dtype for name, dtype in schema.scalar_fields.items()}

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

    def global_state(self, name: str, arguments: str, buffer: Callable[[str, str], str]) -> DeviceFunction:
        """The function that returns a state in global memory.

        `buffer` returns the source of an address, from the names of the buffers of current and of final states.
        """
        schema = self.ctx.schema
        scalars = {k: f"t_{k}(0)" for k in schema.scalar_fields}
        scalars |= {k: f"load({buffer(f'state_{k}', f'final_state_{k}')}, e, t_{k})" for k in schema.stored_scalars}
        return self.state_function(name, arguments, self.global_views(buffer) | scalars)

    def global_views(self, buffer: Callable[[str, str], str]) -> dict[str, str]:
        """{field: source of a view of its elements of env e}, in global memory; `buffer` as for `global_state`."""
        arrays = self.layout.arrays
        views = {k: f"view_{k}({buffer(f'state_{k}', f'final_state_{k}')}, e, t_{k})" for k, b in arrays.items()}
        for field, (name, num_fields, number) in self.layout.packed.items():
            address = buffer(name, name if field in ENGINE_FIELDS else f"final_{name}")  # The engine's fields never change.
            views[field] = f"view_{field}({address}, e * {num_fields} + {number}, t_{field})"
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
        A, layout = self.num_agents, self.layout
        common: dict[str, str] = {}
        lines = []
        for field, b in fields.items():
            shares_buffer = field in layout.packed
            is_packed = shares_buffer and not from_pool
            buffer, num_fields, number = layout.packed[field] if is_packed else (f"state_{field}", 1, 0)
            width = b.shape[1] if len(b.shape) > 1 else 1
            common |= {f"v{num_fields}": f"e * {num_fields * A} + i"} if "{index}" in template else {}
            common |= {"u": f"k * {A} + i"} if "{shared}" in template else {}
            index, agent = (f"{name} * {width}" if width > 1 else name for name in (f"v{num_fields}", "u"))
            for column in range(width):
                offset = layout.offsets.get(field, 0) + column
                copy_offset = offset + layout.num_final_copies * A * width
                lines.append(
                    template.format(
                        field=field,
                        buffer=buffer,
                        final=f"final_{buffer}",
                        index=f"{index} + {number * A + column}",
                        shared=f"w.{PACKED_BUFFERS[b.dtype]}[{agent} + {offset}]",
                        copy=f"w.{PACKED_BUFFERS[b.dtype]}[{agent} + {copy_offset}]",
                        element=f"s.{field}[i, {column}]" if len(b.shape) > 1 else f"s.{field}[i]",
                    )
                )
        return [*(f"{name} = {value}" for name, value in common.items()), *lines]


# Sources of the address of a buffer. They select between addresses, not between views: the compiler would not know whether a
# selected view is in global or in shared memory.


def _current(current: str, final: str) -> str:
    """The address of current elements."""
    return f"b.{current}"


def _final(current: str, final: str) -> str:
    """The address of final elements."""
    return f"b.{final}"


def _current_or_final(current: str, final: str) -> str:
    """The address of final elements if `is_final`, else of current ones."""
    return f"(b.{final} if is_final else b.{current})"


def make_state_access(ctx: MultiAgentContext) -> StateAccess:
    """Compiles the functions for the launch of a context `ctx`."""
    layout = make_state_layout(ctx)
    generator = _FieldFunctions(ctx, layout)
    function, each_element = generator.function, generator.each_element
    loaded, changing, columns = layout.loaded, layout.changing, layout.scalar_columns
    scalars = {name: column.format("k") for name, column in columns.items()}
    stored = {name: column for name, column in scalars.items() if name in ctx.schema.stored_scalars}
    element = "{shared}" if layout.staged else "load(b.{buffer}, {index}, t_{field})"
    unchanging = {name: b for name, b in loaded.items() if name not in changing}
    load_to_shared = each_element(loaded, "{shared} = load(b.{buffer}, {index}, t_{field})")
    load_to_shared += each_element(unchanging, "{copy} = {shared}") if layout.num_final_copies else []
    staged_columns = [*columns.values(), f"w.status[{{}}, {TIME}]"]
    copy_lines = [f"{column.format(f'{layout.num_final_copies} + k')} = {column.format('k')}" for column in staged_columns]
    zeros = {name: dtype(0).item() for name, dtype in ctx.schema.scalar_fields.items()}
    env_arguments, agent_arguments = "b, w, e, k", "b, w, e, k, i"
    return StateAccess(
        layout=layout,
        state=generator.state_function(
            "state", env_arguments, generator.global_views(_current) | layout.staged_views() | scalars
        ),
        from_global=generator.global_state("from_global", "b, e", _current),
        load_final=generator.global_state("load_final", "b, e", _final),
        current_or_final=generator.global_state("current_or_final", "b, e, is_final", _current_or_final),
        load_to_shared=function("load_to_shared", agent_arguments, load_to_shared),
        store_to_global=function(
            "store_to_global", agent_arguments, each_element(changing, "store(b.{buffer}, {index}, {shared}, t_{field})")
        ),
        load_scalars=function(
            "load_scalars", env_arguments, [f"{column} = load(b.state_{k}, e, t_{k})" for k, column in stored.items()]
        ),
        store_scalars=function(
            "store_scalars", env_arguments, [f"store(b.state_{k}, e, {column}, t_{k})" for k, column in stored.items()]
        ),
        save_final=function(
            "save_final", agent_arguments, each_element(changing, f"store(b.{{final}}, {{index}}, {element}, t_{{field}})")
        ),
        save_final_scalars=function(
            "save_final_scalars",
            env_arguments,
            [f"store(b.final_state_{k}, e, {column}, t_{k})" for k, column in stored.items()],
        ),
        clear_scalars=function("clear_scalars", "w, k", [f"{scalars[k]} = {zero!r}" for k, zero in zeros.items()]),
        stage_copy=function("stage_copy", "w, k, i", each_element(changing, "{copy} = {shared}")),
        stage_scalars=function("stage_scalars", "w, k", copy_lines),
        set_from_pool=_make_set_from_pool(ctx, generator),
        role=function("role", "s, i", [f"return {_role_source(ctx)}"]),
    )


def _role_source(ctx: MultiAgentContext) -> str:
    """The source of the number of agent i's role: that of a field, or how many other roles begin before the agent."""
    if ctx.schema.has_role_field:
        return "s.role[i]"
    return " + ".join(f"(i >= {part.first_agent})" for part in ctx.schema.parts[1:]) or "0"


def _make_set_from_pool(ctx: MultiAgentContext, generator: _FieldFunctions) -> DeviceFunction:
    """`set_from_pool` as in `StateAccess`."""
    fields = {name: b for name, b in generator.layout.arrays.items() if name in ctx.options.pool}
    lines = [f"e = {POOL_ROW}"] if fields else []
    lines += generator.each_element(fields, "{element} = load(b.pool_{field}, {index}, t_{field})", from_pool=True)
    return generator.function("set_from_pool", "b, s, i, key", lines)
