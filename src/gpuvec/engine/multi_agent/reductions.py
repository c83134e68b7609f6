"""What all agents of an env make up together, the same whoever comes first: counts, and the least in order.

Threads add to a counter that they share by integer operations, which give the same result in any order; it starts at 0. The
least value is found as the largest difference from the largest integer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import COUNTERS, StateAccess
from gpuvec.spec import Reduction

i32, i64, u32, f32 = np.int32, np.int64, np.uint32, np.float32
LAST = np.int64(np.iinfo(np.int64).max)
INDEX = np.int64(2**31 - 1)  # the bits below a value, for who has it


class SharedCounters(NamedTuple):
    """Operations on counters that the threads of a block share."""

    count: Any  # count(array, k, j): array[k, j] += 1
    most: Any  # most(array, k, j, value): array[k, j] becomes the larger of the two
    most_of_block: Any  # likewise, called by all threads of the block


def cpu_shared_counters() -> SharedCounters:
    """On a CPU, where one thread does all. In the simulator too: its threads never run compiled code at the same time."""

    @inline_function
    def count(array: Any, k: int, j: int) -> None:
        array[k, j] += array.dtype.type(1)

    @inline_function
    def most(array: Any, k: int, j: int, value: int) -> None:
        array[k, j] = max(array[k, j], value)

    return SharedCounters(count, most, most)


def reduction(
    entry: Reduction, number: int, counters: SharedCounters, array_ops: ArrayOps, state: StateAccess, params: Any, where: Any,
    agents: int, given: MultiAgentLaunch,
) -> tuple[Segment, Segment]:  # fmt: skip
    """The segments of `entry`: one adds to its counter, the `number`-th, and one writes the field.

    `where(w, k)` says whether env k of the block takes part.
    """
    of, row, ordered_bits, assume_nonnegative = (
        device_function(entry.of),
        state.row,
        array_ops.ordered_bits,
        array_ops.assume_nonnegative,
    )
    count, most, most_of_block, threads = counters.count, counters.most, counters.most_of_block, given.threads
    against = entry.kind == "all"  # it holds for all if it is not false for any

    @inline_function
    def add(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        if where(w, k) and of(i, row(b, w, e, k), params(b, e)) != against:
            count(w.now, k, COUNTERS + number)

    @inline_function
    def value(b: Any, w: Any, e: int, k: int, i: int) -> Any:
        return f32(of(i, row(b, w, e, k), params(b, e))) + f32(0.0)  # which makes one of the two zeros

    @inline_function
    def rank(found: Any, i: int) -> int:
        """More for a smaller value, then for a lower index; 0 for infinity."""
        return LAST - (i64(ordered_bits(found)) << i64(31) | i64(i)) if found < f32(np.inf) else i64(0)

    @inline_function
    def rank_each(b: Any, w: Any, e: int, k: int, i: int, clock: int) -> None:
        if where(w, k):
            most(w.least, k, number, rank(value(b, w, e, k, i), i))

    @inline_function
    def rank_all(b: Any, w: Any, e0: int, m: int, thread: int, clock: int) -> None:
        """Of a block with one env, whose threads find the best of their own before they compare."""
        best, i, u = f32(np.inf), 0, thread
        while u < agents and where(w, 0):
            found = value(b, w, e0, 0, u)
            best, i = (found, u) if found < best else (best, i)
            u = assume_nonnegative(u + threads)
        most_of_block(w.least, 0, number, rank(best, i))

    results = {"count": "c", "any": "c != i32(0)", "all": "c == i32(0)", "least": "i32((last - c) & index) if c else i32(-1)"}
    counter = f"w.least[k, {number}]" if entry.kind == "least" else f"w.now[k, {COUNTERS + number}]"
    source = f"def finish(b, w, e, k, clock):\n    if where(w, k):\n        c = {counter}\n"
    source += f"        {state.slots[entry.field]} = {results[entry.kind]}\n"
    finish = inline_function(generate_function("finish", source, where=where, i32=i32, last=LAST, index=INDEX))
    if entry.kind != "least":
        first = Segment(AGENTS, add)
    else:
        first = Segment(BLOCK, rank_all) if given.envs == 1 else Segment(AGENTS, rank_each)
    return first, Segment(ENVS, finish)
