"""Sums and extrema over an index set, in an order that depends only on the size of the set.

Lane l of L combines elements l, l + L, l + 2 L, ... in this order. The lanes are then combined in a tree: lane l with lane
l + L / 2, and so on. Floats are thus rounded in the same way on every device and for every number of threads.

Letters: e an env, k its index in the block, c the number of an element or a lane.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, DType, Work
from gpuvec.engine.layout.reduction_order import COMBINE, count_lanes, identity_of
from gpuvec.engine.layout.schema import PACKED_BUFFERS
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.phase_functions import make_index
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import WorkArrays
from gpuvec.phases import Reduction

f32, i32 = np.float32, np.int32
SEQUENTIAL_LANES = 8  # So many lanes are combined by one thread, without barriers.


def tree_work_arrays(ctx: MultiAgentContext) -> WorkArrays:
    """Returns the arrays of the work in which lanes are combined, one for each dtype.

    Args:
        ctx: the context.
    """
    lanes: dict[DType, int] = {}
    for reduction in ctx.all_reductions:
        if reduction.kind in COMBINE and reduction.at is None:
            dtype = ctx.schema.scalar_fields[reduction.field]
            lanes[dtype] = max(lanes.get(dtype, 0), count_lanes(math.prod(ctx.schema.sets[reduction.over])))
    return {_lane_array(dtype): (dtype, (ctx.launch.envs_per_block, count)) for dtype, count in lanes.items()}


def _lane_array(dtype: DType) -> str:
    """The name of the array for the lanes of a reduction of that dtype."""
    return f"lane_{PACKED_BUFFERS[dtype]}"


class _Lanes(NamedTuple):
    """The compiled functions on the lanes of a reduction."""

    combine: DeviceFunction  # combine(x, y) -> the combination of two numbers
    load: DeviceFunction  # load(w, k, c) -> lane c of env k
    store: DeviceFunction  # store(w, k, c, value)


def tree_segments(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, condition: DeviceFunction
) -> list[Segment]:
    """Compiles the segments of a reduction: each lane, then the levels of the tree, and the result.

    Args:
        ctx: the context.
        access: access to the state.
        reduction: the reduction.
        condition: `condition(w, k)` -> whether the reduction runs in env k of the block.
    """
    num_lanes = count_lanes(math.prod(ctx.schema.sets[reduction.over]))
    lanes = _make_lanes(reduction, ctx.schema.scalar_fields[reduction.field])
    segments = [Segment(AGENTS, _make_lane(ctx, access, reduction, lanes, condition), num_elements=num_lanes)]
    while num_lanes > SEQUENTIAL_LANES:
        num_lanes //= 2
        segments.append(Segment(AGENTS, _make_level(lanes, num_lanes), num_elements=num_lanes))
    return [*segments, Segment(ENVS, _make_result(access, reduction, lanes, condition, num_lanes))]


def _make_lanes(reduction: Reduction, dtype: DType) -> _Lanes:
    array = f"w.{_lane_array(dtype)}[k, c]"
    sources = {
        "combine": f"def combine(x, y):\n    return {COMBINE[reduction.kind]}\n",
        "load": f"def load(w, k, c):\n    return {array}\n",
        "store": f"def store(w, k, c, value):\n    {array} = value\n",
    }
    return _Lanes(*(inline_function(generate_function(name, source, t=dtype)) for name, source in sources.items()))


def _make_lane(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, lanes: _Lanes, condition: DeviceFunction
) -> DeviceFunction:
    """`lane(b, w, e, k, c, clock)`, which combines the elements of lane c."""
    value_of, state, params = device_function(reduction.function), access.state, ctx.params
    dtype, index = ctx.schema.scalar_fields[reduction.field], make_index(ctx, reduction.over)
    num_elements = math.prod(ctx.schema.sets[reduction.over])
    num_lanes, identity = count_lanes(num_elements), dtype(identity_of(reduction.kind, dtype))
    assume_nonnegative, (combine, _, store) = ctx.array_ops.assume_nonnegative, lanes

    @inline_function
    def lane(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
        if condition(w, k):
            result, n = identity, assume_nonnegative(c)
            while n < num_elements:
                result = combine(result, dtype(value_of(index(n), state(b, w, e, k), params(b, e))))
                n = assume_nonnegative(n + num_lanes)
            store(w, k, c, result)

    return lane


def _make_level(lanes: _Lanes, half: int) -> DeviceFunction:
    """`level(b, w, e, k, c, clock)`, which combines lanes c and c + `half`."""
    combine, load, store = lanes

    @inline_function
    def level(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
        store(w, k, c, combine(load(w, k, c), load(w, k, c + half)))

    return level


def _make_result(
    access: StateAccess, reduction: Reduction, lanes: _Lanes, condition: DeviceFunction, num_lanes: int
) -> DeviceFunction:
    """`write_result(b, w, e, k, clock)`, which combines the last lanes, and writes the field."""
    combine, load, store = lanes

    @inline_function
    def last_levels(w: Work, k: int) -> float:
        half = num_lanes // 2
        while half > 0:
            for c in range(half):
                store(w, k, c, combine(load(w, k, c), load(w, k, c + half)))
            half //= 2
        return load(w, k, 0)  # type: ignore[no-any-return]  # a number

    field = access.layout.scalar_columns[reduction.field].format("k")
    source = f"def write_result(b, w, e, k, clock):\n    if condition(w, k):\n        {field} = last_levels(w, k)\n"
    return inline_function(generate_function("write_result", source, condition=condition, last_levels=last_levels))
