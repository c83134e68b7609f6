"""The layout of the state of many agents while a kernel runs: which fields are in shared memory, and at which offsets.

Fields with elements for each agent are in shared memory if the launch stages the state, else in their buffers. Scalars are
always in shared memory, as row `k` of one array for each dtype. The work has few arrays, because each of them is passed to
every function as seven values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import MAX_WORD_BYTES, Buffer
from gpuvec.engine.layout.schema import ENGINE_FIELDS, PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext

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
    """The locations of fields with elements for each agent, and of scalars."""

    arrays: dict[str, Buffer]  # all fields with elements for each agent
    searched: tuple[str, ...]  # fields that the first kernel's search fills before every observation
    staged: dict[str, Buffer]  # fields in shared memory
    changing: dict[str, Buffer]  # fields of the agents that a step may change and the next step reads
    set_fields: dict[str, Buffer]  # fields of other sets, all of which a step may change
    offsets: dict[str, int]  # {staged field: its first element in the array of its dtype}
    sizes: dict[DType, int]  # {dtype: number of elements of its array}
    packed: dict[str, PackedField]  # fields that share a buffer with others
    scalar_columns: dict[str, str]  # {scalar: source of its element, with {} for the index of the env in the block}
    num_final_copies: int  # number of copies of final states, which follow the states of the envs

    @property
    def arrays_with_words(self) -> frozenset[str]:
        """The arrays of the work that threads access in words of up to `MAX_WORD_BYTES`, to which they must be aligned."""
        return frozenset(PACKED_BUFFERS[b.dtype] for k, b in self.staged.items() if k in self.set_fields)

    @property
    def loaded(self) -> dict[str, Buffer]:
        """The staged fields of the agents that a kernel loads when it begins."""
        return {k: b for k, b in self.staged.items() if k not in self.searched and k not in self.set_fields}

    def staged_views(self) -> dict[str, str]:
        """Returns {staged field: source of a view of its elements for env `k` of the block}."""
        return {
            name: f"subarray_{name}(w.{PACKED_BUFFERS[b.dtype]}, {self.offsets[name]} + k * {int(np.prod(b.shape))})"
            for name, b in self.staged.items()
        }


def make_state_layout(ctx: MultiAgentContext) -> StateLayout:
    """Computes the layout for the launch of a context `ctx`."""
    schema, launch = ctx.schema, ctx.launch
    searched = (schema.search.field,) if schema.search and not launch.split else ()
    own = {k: b for k, b in schema.array_fields.items() if k not in schema.search_fields or k in searched}
    # If several blocks share a multiprocessor, this field stays in its buffer: all agents read the same few elements of it.
    unstaged = ("agents_by_role",) if launch.min_blocks_per_sm > 1 else ()
    staged = {k: b for k, b in own.items() if k not in unstaged} if launch.stage_state else {}
    num_states = launch.envs_per_block + ctx.num_final_copies
    sizes, offsets = dict.fromkeys(PACKED_BUFFERS, 0), {}
    for name, b in staged.items():
        if name in schema.set_fields:
            word = MAX_WORD_BYTES // np.dtype(b.dtype).itemsize
            sizes[b.dtype] = -(-sizes[b.dtype] // word) * word
        offsets[name] = sizes[b.dtype]
        sizes[b.dtype] += num_states * int(np.prod(b.shape))
    return StateLayout(
        arrays=schema.array_fields,
        searched=searched,
        staged=staged,
        changing={k: b for k, b in schema.agent_fields.items() if k in own and k not in (*searched, *ENGINE_FIELDS)},
        set_fields=schema.set_fields,
        offsets=offsets,
        sizes={dtype: size for dtype, size in sizes.items() if size},
        packed={k: PackedField(name, len(ks), ks.index(k)) for name, ks in schema.packed_fields.items() for k in ks},
        scalar_columns=_scalar_columns(schema.scalar_fields),
        num_final_copies=ctx.num_final_copies,
    )


def state_work_arrays(ctx: MultiAgentContext, layout: StateLayout) -> WorkArrays:
    """Returns the arrays of the work that hold the state of a context `ctx` with that `layout`."""
    num_states = ctx.launch.envs_per_block + layout.num_final_copies
    dtypes = list(ctx.schema.scalar_fields.values())
    arrays: WorkArrays = {
        f"scalar_{name}": (dtype, (num_states, dtypes.count(dtype)))
        for dtype, name in PACKED_BUFFERS.items()
        if dtype in dtypes
    }
    return arrays | {PACKED_BUFFERS[dtype]: (dtype, (size,)) for dtype, size in layout.sizes.items()}


def _scalar_columns(scalars: dict[str, DType]) -> dict[str, str]:
    """{scalar: source of its element}. Each scalar is a column of the array of its dtype."""
    columns = {}
    for number, (name, dtype) in enumerate(scalars.items()):
        column = sum(other is dtype for other in list(scalars.values())[:number])
        columns[name] = f"w.scalar_{PACKED_BUFFERS[dtype]}[{{}}, {column}]"
    return columns
