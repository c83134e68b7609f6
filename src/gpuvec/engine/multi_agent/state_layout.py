"""Where the state of many agents is while a kernel runs: which fields are in shared memory, and at which offsets.

Fields with elements for each agent are in shared memory if the launch stages the state, else in their buffers. Scalars are
always in shared memory, as row `k` of one array for each dtype. The work consists of few arrays, because each is seven values
that are passed to every function.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import ENGINE_FIELDS, PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext

# Columns of `w.status`, int32 for each env of the block. RNG_STREAM is the first of four words of its random-number stream,
# VOTES_AGAINST counts agents that vote against the end of the episode, and the counters of reductions begin at COUNTERS.
START, TIME, AWAITS_RESET, CLOCK, RNG_STREAM, HAS_ENDED, VOTES_AGAINST, COUNTERS = 0, 1, 2, 3, 4, 8, 9, 10

WorkArrays = dict[str, tuple[DType, tuple[int, ...]]]  # {name in the work: (dtype, shape)}


class BufferPlace(NamedTuple):
    """The buffer of a field with one element for each agent, in which fields of one dtype are side by side, env by env."""

    buffer: str  # its name in the batch
    num_fields: int  # that share it
    number: int  # of this field among them


class StateLayout(NamedTuple):
    """The places of fields that have elements for each agent, and of scalars."""

    arrays: dict[str, Buffer]  # all fields with elements for each agent
    searched: tuple[str, ...]  # fields that the first kernel's search fills before every observation
    staged: dict[str, Buffer]  # fields in shared memory
    changing: dict[str, Buffer]  # fields that a step changes and keeps
    offsets: dict[str, int]  # {staged field: its first element in the array of its dtype}
    sizes: dict[DType, int]  # {dtype: elements of its array}
    buffers: dict[str, BufferPlace]  # of fields that share a buffer with others
    scalar_columns: dict[str, str]  # {scalar: source of its element, with {} for the place of its env}
    final_places: int  # places of copies of final states, after those of the envs

    @property
    def loaded(self) -> dict[str, Buffer]:
        """Staged fields that a kernel loads when it begins."""
        return {name: buffer for name, buffer in self.staged.items() if name not in self.searched}

    def staged_views(self) -> dict[str, str]:
        """{staged field: source of a view of its elements of the env in place `k`}."""
        return {
            name: f"subarray(w.{PACKED_BUFFERS[b.dtype]}, {self.offsets[name]} + k * {int(np.prod(b.shape))}, {b.shape})"
            for name, b in self.staged.items()
        }


def make_state_layout(ctx: MultiAgentContext) -> StateLayout:
    """The places for the launch of a context, `ctx`."""
    schema, launch = ctx.schema, ctx.launch
    searched = (schema.search.field,) if schema.search and not launch.split else ()
    own = {k: b for k, b in schema.array_fields.items() if k not in schema.search_fields or k in searched}
    # All agents read the same few elements of this field. If blocks share a multiprocessor's registers, it stays in its buffer.
    unstaged = ("agents_by_role",) if launch.min_blocks_per_sm > 1 else ()
    staged = {k: b for k, b in own.items() if k not in unstaged} if launch.stage_state else {}
    places = launch.envs_per_block + ctx.final_places
    sizes, offsets = dict.fromkeys(PACKED_BUFFERS, 0), {}
    for name, b in staged.items():
        offsets[name] = sizes[b.dtype]
        sizes[b.dtype] += places * int(np.prod(b.shape))
    return StateLayout(
        arrays=schema.array_fields,
        searched=searched,
        staged=staged,
        changing={k: b for k, b in own.items() if k not in searched and k not in ENGINE_FIELDS},
        offsets=offsets,
        sizes={dtype: size for dtype, size in sizes.items() if size},
        buffers={k: BufferPlace(name, len(ks), ks.index(k)) for name, ks in schema.packed_fields.items() for k in ks},
        scalar_columns=_scalar_columns(schema.scalar_fields),
        final_places=ctx.final_places,
    )


def state_work_arrays(ctx: MultiAgentContext, layout: StateLayout) -> WorkArrays:
    """The arrays of the work that hold the state of a context `ctx`, as `layout` says."""
    places = ctx.launch.envs_per_block + layout.final_places
    dtypes = list(ctx.schema.scalar_fields.values())
    arrays: WorkArrays = {
        f"scalar_{name}": (dtype, (places, dtypes.count(dtype))) for dtype, name in PACKED_BUFFERS.items() if dtype in dtypes
    }
    return arrays | {PACKED_BUFFERS[dtype]: (dtype, (size,)) for dtype, size in layout.sizes.items()}


def _scalar_columns(scalars: dict[str, DType]) -> dict[str, str]:
    """{scalar: source of its element}: a column for each, in one array for each dtype."""
    columns = {}
    for number, (name, dtype) in enumerate(scalars.items()):
        column = sum(other is dtype for other in list(scalars.values())[:number])
        columns[name] = f"w.scalar_{PACKED_BUFFERS[dtype]}[{{}}, {column}]"
    return columns
