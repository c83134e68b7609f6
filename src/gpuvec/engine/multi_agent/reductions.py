"""Reductions over an index set, with results that do not depend on the order in which threads visit elements.

For counts, the threads of a block add to a shared integer, which starts at 0. The argmin is the element with the largest rank,
an integer that decreases with the value. `tree_reductions` has sums and extrema, `scatters` reductions into several elements.
"""

from __future__ import annotations

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.layout.reduction_order import COMBINE
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.phase_functions import make_index, unit_of_set
from gpuvec.engine.multi_agent.scatters import scatter_segments
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import COUNTERS
from gpuvec.engine.multi_agent.tree_reductions import tree_segments
from gpuvec.phases import Reduction

i32, i64, f32 = np.int32, np.int64, np.float32
MAX_RANK = np.int64(np.iinfo(np.int64).max)
INDEX_MASK = np.int64(2**31 - 1)  # the low bits of a rank, which hold the element


def reduction_segments(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction
) -> list[Segment]:
    """Compiles the segments of a reduction, which update its counter or its lanes, and write its field.

    Args:
        ctx: the context.
        access: access to the state.
        reduction: the reduction.
        number: the index of its counter.
        condition: `condition(w, k)` -> whether the reduction runs in env k of the block.
    """
    if reduction.at is not None:
        return scatter_segments(ctx, access, reduction, condition)
    if reduction.kind in COMBINE:
        return tree_segments(ctx, access, reduction, condition)
    update = _rank_segment if reduction.kind == "argmin" else _count_segment
    return [update(ctx, access, reduction, number, condition), _result_segment(access, reduction, number, condition)]


def _count_segment(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction
) -> Segment:
    """The segment that counts elements for which the function is true; for `all_of`, those for which it is false."""
    value_of, state, params, increment = device_function(reduction.function), access.state, ctx.params, ctx.counters.increment
    uncounted, index = reduction.kind == "all", make_index(ctx, reduction.over)

    @inline_function
    def count(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k) and value_of(index(i), state(b, w, e, k), params(b, e)) != uncounted:
            increment(w.status, k, COUNTERS + number)

    return Segment(AGENTS, count, num_elements=unit_of_set(ctx, reduction.over)[1])


def _rank_segment(
    ctx: MultiAgentContext, access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction
) -> Segment:
    """The segment that finds the largest rank of an element."""
    value_of, state, params = device_function(reduction.function), access.state, ctx.params
    ordered_bits = ctx.array_ops.ordered_bits
    update_max, update_max_by_block = ctx.counters.update_max, ctx.counters.update_max_by_block
    threads, assume_nonnegative, index = (
        ctx.launch.threads_per_block,
        ctx.array_ops.assume_nonnegative,
        make_index(ctx, reduction.over),
    )
    count = unit_of_set(ctx, reduction.over)[1]
    elements = count or ctx.num_agents

    @inline_function
    def element_value(b: Batch, w: Work, e: int, k: int, i: int) -> float:
        return f32(value_of(index(i), state(b, w, e, k), params(b, e))) + f32(0.0)  # The sum turns -0.0 into 0.0.

    @inline_function
    def rank(value: float, i: int) -> int:
        # The rank is larger for a smaller value, and for a lower index of equal values. It is 0 for infinity.
        return MAX_RANK - (i64(ordered_bits(value)) << i64(31) | i64(i)) if value < f32(np.inf) else i64(0)

    @inline_function
    def rank_element(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k):
            update_max(w.best_rank, k, number, rank(element_value(b, w, e, k, i), i))

    @inline_function
    def rank_block(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        # A block with one env has several elements per thread: each thread first finds the least value of its elements.
        least, i, u = f32(np.inf), 0, thread
        while u < elements and condition(w, 0):
            value = element_value(b, w, e0, 0, u)
            least, i = (value, u) if value < least else (least, i)
            u = assume_nonnegative(u + threads)
        update_max_by_block(w.best_rank, 0, number, rank(least, i))

    return Segment(BLOCK, rank_block) if ctx.launch.envs_per_block == 1 else Segment(AGENTS, rank_element, num_elements=count)


def _result_segment(access: StateAccess, reduction: Reduction, number: int, condition: DeviceFunction) -> Segment:
    """The segment that writes the field of the result."""
    counter = f"w.best_rank[k, {number}]" if reduction.kind == "argmin" else f"w.status[k, {COUNTERS + number}]"
    result = {
        "count": "counter",
        "any": "counter != i32(0)",
        "all": "counter == i32(0)",
        "argmin": "i32((max_rank - counter) & index_mask) if counter else i32(-1)",
    }[reduction.kind]
    field = access.layout.scalar_columns[reduction.field].format("k")
    source = "def write_result(b, w, e, k, clock):\n    if condition(w, k):\n"
    source += f"        counter = {counter}\n        {field} = {result}\n"
    scope = {"condition": condition, "i32": i32, "max_rank": MAX_RANK, "index_mask": INDEX_MASK}
    return Segment(ENVS, inline_function(generate_function("write_result", source, **scope)))
