"""Who searches for neighbours, and when: segments of the kernel that plays, or a kernel of its own (design/0020).

In a kernel of its own a block puts down who searches before they do. So no thread of a warp waits for others while its agent
does not search, and the last state of an episode, which is searched for its last observation, is one more task.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.buffers import named_tuple
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.launch_mapping import STAGED_BYTES, MultiAgentLaunch
from gpuvec.engine.multi_agent.launch_mapping import cells as counted
from gpuvec.engine.multi_agent.neighbors.cell_list import CellList, cells
from gpuvec.engine.multi_agent.neighbors.knn import Look
from gpuvec.engine.multi_agent.reductions import SharedCounters
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess

i32, b1 = np.int32, np.bool_


class NeighborSearch(NamedTuple):
    """A kernel that searches. All of a block finish one function before any begins the next; they run for one round or two."""

    work: Any  # the NamedTuple class of `w`
    arrays: dict[str, tuple[Any, tuple[int, ...]]]  # its fields, of a block: (dtype, shape)
    rounds: Any  # rounds(b, block, played) -> how many; `played` says whether this is a step, in which episodes may have ended
    functions: tuple[Any, ...]  # function(b, w, block, thread, played, number), `number` being that of the round


def listed(schema: MultiAgentSchema, given: MultiAgentLaunch, array_ops: ArrayOps, counters: SharedCounters) -> CellList | None:
    """The list of cells that the search goes by, if it does."""
    look, alone = schema.search, given.threads == 1
    found = counted(schema, None if alone else STAGED_BYTES) if alone or given.parts else None
    if look is None or found is None:
        return None
    return cells(
        look,
        *found,
        schema.agents_shape[0],
        schema.array_fields[look.field].shape[1],
        1 if alone else given.seekers,
        array_ops,
        counters,
    )


def seeking(state: StateAccess, by: CellList | None, params: Any, where: Any) -> tuple[Segment, ...]:
    """The segments of a search in envs k of the block for which `where(w, k)` holds; by cells if one thread does all."""
    assert state.look is not None, "a search"
    row, (seeks, nobody, among_all, *_) = state.row, state.look
    if by is None:

        @inline_function
        def seek(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
            if where(w, k):
                s, p = row(b, w, e, k), params(b, e)
                if seeks(i, s, p):
                    among_all(i, s, p)
                else:
                    nobody(i, s)

        return (Segment(AGENTS, seek),)
    _, clear, measure, link, find = by

    @inline_function
    def enlist(b: Any, w: Any, e: int, k: int, clock: int) -> None:
        if where(w, k):
            s = row(b, w, e, k)
            clear(w, 0)
            measure(w, s, 0)
            link(w, s, 0)

    @inline_function
    def seek_near(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        if where(w, k):
            s, p = row(b, w, e, k), params(b, e)
            if seeks(i, s, p):
                find(i, s, p, w)
            else:
                nobody(i, s)

    return Segment(ENVS, enlist), Segment(AGENTS, seek_near)


def seeking_apart(
    state: StateAccess,
    by: CellList | None,
    agents: int,
    same_step: bool,
    given: MultiAgentLaunch,
    ops: MemoryOps,
    array_ops: ArrayOps,
    params: Any,
) -> NeighborSearch:
    """The kernel of a search: by cells, or a walk of every seeker over all agents."""
    assert state.look is not None, "a search"
    shared = (agents, same_step, given, ops, array_ops, params)
    return _by_cells(state, state.look, by, *shared) if by else _by_walks(state, state.look, *shared)


def _by_walks(
    state: StateAccess,
    look: Look,
    agents: int,
    same_step: bool,
    given: MultiAgentLaunch,
    ops: MemoryOps,
    array_ops: ArrayOps,
    params: Any,
) -> NeighborSearch:
    outside, either, (seeks, nobody, _, at_once) = state.outside, state.either, look
    load, divide, assume_nonnegative, fetch_add, threads = (
        ops.load,
        array_ops.divide,
        array_ops.assume_nonnegative,
        array_ops.fetch_add,
        given.seekers,
    )

    @inline_function
    def one(b: Any, block: int, played: bool) -> int:
        return 1

    @inline_function
    def clear(b: Any, w: Any, block: int, thread: int, played: bool, number: int) -> None:
        if thread == 0:
            w.tasks[0] = i32(0)

    @inline_function
    def enlist(b: Any, w: Any, block: int, thread: int, played: bool, number: int) -> None:
        v = assume_nonnegative(block * threads + thread)
        if v < b.n * agents:
            e, i = divide(v, agents)
            last = 1 if same_step and played and load(b.final_mask, e, b1) else 0
            n = 0
            while n <= last:
                s = either(b, e, n > 0) if same_step else outside(b, e)
                if seeks(i, s, params(b, e)):
                    w.task[assume_nonnegative(fetch_add(w.tasks, 0))] = i32(2 * thread + n)
                else:
                    nobody(i, s)
                n = assume_nonnegative(n + 1)

    @inline_function
    def seek(b: Any, w: Any, block: int, thread: int, played: bool, number: int) -> None:
        u, tasks = thread, assume_nonnegative(w.tasks[0])
        while u < tasks:
            task = assume_nonnegative(w.task[u])
            e, i = divide(assume_nonnegative(block * threads + (task >> 1)), agents)
            s = either(b, e, task & 1 != 0) if same_step else outside(b, e)
            at_once(i, s, params(b, e))
            u = assume_nonnegative(u + threads)

    held: dict[str, tuple[Any, tuple[int, ...]]] = {"tasks": (i32, (1,)), "task": (i32, (2 * threads,))}
    return NeighborSearch(named_tuple("Work", tuple(held)), held, one, (clear, enlist, seek))


def _by_cells(
    state: StateAccess, look: Look, by: CellList, agents: int, same_step: bool, given: MultiAgentLaunch, ops: MemoryOps,
    array_ops: ArrayOps,
    params: Any,
) -> NeighborSearch:  # fmt: skip
    """Some blocks have an env together, of which each makes the list for itself: to make it is cheap, and it fits into shared
    memory. The round after the first is for an episode that ended.
    """
    outside, either, (seeks, nobody, *_) = state.outside, state.either, look
    load, divide, assume_nonnegative, threads, parts = (
        ops.load,
        array_ops.divide,
        array_ops.assume_nonnegative,
        given.seekers,
        given.parts,
    )
    held, empty, measure, link, find = by

    @inline_function
    def rounds(b: Any, block: int, played: bool) -> int:
        e, _ = divide(block, parts)
        return 2 if same_step and played and load(b.final_mask, e, b1) else 1

    @inline_function
    def shown(b: Any, block: int, number: int) -> Any:
        e, _ = divide(block, parts)
        return either(b, e, number > 0) if same_step else outside(b, e)

    @inline_function
    def clear(b: Any, w: Any, block: int, thread: int, played: bool, number: int) -> None:
        empty(w, thread)

    @inline_function
    def measure_(b: Any, w: Any, block: int, thread: int, played: bool, number: int) -> None:
        measure(w, shown(b, block, number), thread)

    @inline_function
    def link_(b: Any, w: Any, block: int, thread: int, played: bool, number: int) -> None:
        link(w, shown(b, block, number), thread)

    @inline_function
    def seek(b: Any, w: Any, block: int, thread: int, played: bool, number: int) -> None:
        e, part = divide(block, parts)
        s, p, i = shown(b, block, number), params(b, e), assume_nonnegative(part * threads + thread)
        while i < agents:
            if seeks(i, s, p):
                find(i, s, p, w)
            else:
                nobody(i, s)
            i = assume_nonnegative(i + parts * threads)

    return NeighborSearch(named_tuple("Work", tuple(held)), held, rounds, (clear, measure_, link_, seek))
