"""The search for neighbors in segments of the first kernel, or in a second kernel (design/0020).

In the second kernel, the threads of a block first collect the agents that search. Otherwise the threads of agents that do not
search would wait for the others of their warp. The last state of an episode, from which final observations are computed, is a
further task.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvState, Work
from gpuvec.engine.layout.buffers import named_tuple
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.neighbors.cell_list import CellList
from gpuvec.engine.multi_agent.neighbors.knn import KnnFunctions
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import WorkArrays

i32, b1 = np.int32, np.bool_


class NeighborSearch(NamedTuple):
    """The functions of a kernel that searches, with a barrier after each. They run in one or two rounds."""

    work: type[Work]  # the NamedTuple class of `w`
    arrays: WorkArrays  # the fields of `w`
    num_rounds: DeviceFunction  # num_rounds(b, block, is_step) -> the number of rounds of a block
    functions: tuple[DeviceFunction, ...]  # function(b, w, block, thread, is_step, round_index)


def search_segments(
    ctx: MultiAgentContext, access: StateAccess, knn: KnnFunctions, cell_list: CellList | None, condition: DeviceFunction
) -> list[Segment]:
    """Compiles the segments of a search in the first kernel. It uses a list of cells only if one thread runs an env.

    Args:
        ctx: the context.
        access: access to the state.
        knn: the functions for one agent.
        cell_list: the list of cells; None if an agent visits all others.
        condition: `condition(w, k)` -> whether the search runs in env k of the block.
    """
    state, params, searches, clear_row, knn_by_distance = (
        access.state,
        ctx.params,
        knn.searches,
        knn.clear_row,
        knn.knn_by_distance,
    )
    if cell_list is not None:
        return _cell_segments(ctx, access, knn, cell_list, condition)

    @inline_function
    def search(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k):
            s, p = state(b, w, e, k), params(b, e)
            if searches(i, s, p):
                knn_by_distance(i, s, p)
            else:
                clear_row(i, s)

    return [Segment(AGENTS, search)]


def _cell_segments(
    ctx: MultiAgentContext, access: StateAccess, knn: KnnFunctions, cell_list: CellList, condition: DeviceFunction
) -> list[Segment]:
    """The segments of a search with a list of cells."""
    state, params, searches, clear_row = access.state, ctx.params, knn.searches, knn.clear_row
    _, clear, measure_extent, insert_agents, find_neighbors = cell_list

    @inline_function
    def build_list(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        if condition(w, k):
            s = state(b, w, e, k)
            clear(w, 0)
            measure_extent(w, s, 0)
            insert_agents(w, s, 0)

    @inline_function
    def search(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k):
            s, p = state(b, w, e, k), params(b, e)
            if searches(i, s, p):
                find_neighbors(i, s, p, w)
            else:
                clear_row(i, s)

    return [Segment(ENVS, build_list), Segment(AGENTS, search)]


def make_neighbor_search(
    ctx: MultiAgentContext, access: StateAccess, knn: KnnFunctions, cell_list: CellList | None
) -> NeighborSearch:
    """Compiles the functions of the second kernel.

    Args:
        ctx: the context.
        access: access to the state.
        knn: the functions for one agent.
        cell_list: the list of cells; None if an agent visits all others.
    """
    return _search_all(ctx, access, knn) if cell_list is None else _search_cells(ctx, access, knn, cell_list)


def _make_state_of(ctx: MultiAgentContext, access: StateAccess) -> DeviceFunction:
    """`state_of(b, e, is_final)` -> the state of env e, or the last state of its episode that ended."""
    from_global, current_or_final, same_step = access.from_global, access.current_or_final, ctx.same_step

    @inline_function
    def state_of(b: Batch, e: int, is_final: bool) -> EnvState:
        return current_or_final(b, e, is_final) if same_step else from_global(b, e)

    return state_of


def _search_all(ctx: MultiAgentContext, access: StateAccess, knn: KnnFunctions) -> NeighborSearch:
    """The functions of a kernel with a thread for each agent, which distributes the agents that search over all threads."""
    searches, clear_row, knn_by_key, state_of = knn.searches, knn.clear_row, knn.knn_by_key, _make_state_of(ctx, access)
    agents, threads, load, params, same_step = (
        ctx.num_agents, ctx.launch.threads_per_search_block, ctx.ops.load, ctx.params, ctx.same_step,
    )  # fmt: skip
    divmod_u32, fetch_add = ctx.array_ops.divmod_u32, ctx.array_ops.fetch_add
    assume_nonnegative = ctx.array_ops.assume_nonnegative

    @inline_function
    def num_rounds(b: Batch, block: int, is_step: bool) -> int:
        return 1

    @inline_function
    def clear(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
        if thread == 0:
            w.num_tasks[0] = i32(0)

    @inline_function
    def collect(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
        v = assume_nonnegative(block * threads + thread)
        if v < b.n * agents:
            e, i = divmod_u32(v, agents)
            last_state = 1 if same_step and is_step and load(b.final_mask, e, b1) else 0
            n = 0
            while n <= last_state:
                s = state_of(b, e, n > 0)
                if searches(i, s, params(b, e)):
                    w.tasks[assume_nonnegative(fetch_add(w.num_tasks, 0))] = i32(2 * thread + n)
                else:
                    clear_row(i, s)
                n = assume_nonnegative(n + 1)

    @inline_function
    def search(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
        u, num_tasks = thread, assume_nonnegative(w.num_tasks[0])
        while u < num_tasks:
            task = assume_nonnegative(w.tasks[u])
            e, i = divmod_u32(assume_nonnegative(block * threads + (task >> 1)), agents)
            s = state_of(b, e, task & 1 != 0)
            knn_by_key(i, s, params(b, e))
            u = assume_nonnegative(u + threads)

    arrays: WorkArrays = {"num_tasks": (i32, (1,)), "tasks": (i32, (2 * threads,))}
    return NeighborSearch(named_tuple("Work", tuple(arrays)), arrays, num_rounds, (clear, collect, search))


def _search_cells(ctx: MultiAgentContext, access: StateAccess, knn: KnnFunctions, cell_list: CellList) -> NeighborSearch:
    """The functions of a kernel with several blocks for each env.

    Each block builds the whole list, which takes little time and fits into shared memory. A second round searches the last
    state of an episode that ended.
    """
    searches, clear_row, state_of = knn.searches, knn.clear_row, _make_state_of(ctx, access)
    arrays, clear_list, measure_list, insert_agents, find_neighbors = cell_list
    agents, threads, blocks = ctx.num_agents, ctx.launch.threads_per_search_block, ctx.launch.search_blocks_per_env
    load, params, same_step = ctx.ops.load, ctx.params, ctx.same_step
    divmod_u32, assume_nonnegative = ctx.array_ops.divmod_u32, ctx.array_ops.assume_nonnegative

    @inline_function
    def num_rounds(b: Batch, block: int, is_step: bool) -> int:
        e, _ = divmod_u32(block, blocks)
        return 2 if same_step and is_step and load(b.final_mask, e, b1) else 1

    @inline_function
    def state_in_round(b: Batch, block: int, round_index: int) -> EnvState:
        e, _ = divmod_u32(block, blocks)
        return state_of(b, e, round_index > 0)

    @inline_function
    def clear(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
        clear_list(w, thread)

    @inline_function
    def measure_extent(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
        measure_list(w, state_in_round(b, block, round_index), thread)

    @inline_function
    def insert(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
        insert_agents(w, state_in_round(b, block, round_index), thread)

    @inline_function
    def search(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
        e, part = divmod_u32(block, blocks)
        s, p, i = state_in_round(b, block, round_index), params(b, e), assume_nonnegative(part * threads + thread)
        while i < agents:
            if searches(i, s, p):
                find_neighbors(i, s, p, w)
            else:
                clear_row(i, s)
            i = assume_nonnegative(i + blocks * threads)

    functions = (clear, measure_extent, insert, search)
    return NeighborSearch(named_tuple("Work", tuple(arrays)), arrays, num_rounds, functions)
