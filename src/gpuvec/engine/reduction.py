"""What all agents of an env make up together, the same whoever comes first: counts, and the least in order.

Threads add to a counter that they share by integer operations, which give the same result in any order; it starts at 0. The
least value is found as the largest difference from the largest integer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.arrays import Arrays
from gpuvec.engine.crowd_state import IDLE, OVER, CrowdState
from gpuvec.engine.jit import device, generated, inline
from gpuvec.spec import Reduction

i32, u32, u64, f32 = np.int32, np.uint32, np.uint64, np.float32
UNLESS_IDLE, IF_OVER, IN_ANY = range(3)
LAST = np.uint64(np.iinfo(np.uint64).max)


class Tally(NamedTuple):
    """Operations on counters that the threads of a block share."""

    count: Any  # count(array, k, j): array[k, j] += 1
    most: Any  # most(array, k, j, value): array[k, j] becomes the larger of the two


def host_tally() -> Tally:
    """On a CPU, where one thread does all. In the simulator too: its threads never run compiled code at the same time."""

    @inline
    def count(array: Any, k: int, j: int) -> None:
        array[k, j] += array.dtype.type(1)

    @inline
    def most(array: Any, k: int, j: int, value: int) -> None:
        array[k, j] = max(array[k, j], value)

    return Tally(count, most)


def reduction(
    entry: Reduction, number: int, agents: int, tally: Tally, arrays: Arrays, state: CrowdState, params: Any, where: int
) -> tuple[Any, Any]:
    """The segments of `entry`: one adds to its counter, column `number` of `w.counters`, and one writes the field.

    `where` says in which envs: one of the constants above.
    """
    of, row, divide, bits, count, most = device(entry.of), state.row, arrays.divide, arrays.bits, tally.count, tally.most
    far, ordered = f32(np.inf), entry.kind == "least"
    against = entry.kind == "all"  # it holds for all if it is not false for any
    results = {
        "count": "i32(c)", "any": "c != nothing", "all": "c == nothing",
        "least": "i32(-1) if c == nothing else i32((last - c) & low)",
    }  # fmt: skip

    @inline
    def add(b: Any, w: Any, e0: int, m: int, thread: int, threads: int, clock: int) -> None:
        for u in range(thread, m * agents, threads):
            k, i = divide(u, agents)
            if where == IN_ANY or (where == IF_OVER and w.now[k, OVER]) or (where == UNLESS_IDLE and not w.now[k, IDLE]):
                found = of(i, row(b, w, e0 + k, k), params(b, e0 + k))
                if ordered:
                    if f32(found) < far:
                        most(w.counters, k, number, LAST - (u64(bits(f32(found))) << u64(32) | u64(i)))
                elif found != against:
                    count(w.counters, k, number)

    conditions = {UNLESS_IDLE: f"not w.now[k, {IDLE}]", IF_OVER: f"w.now[k, {OVER}]", IN_ANY: "True"}
    source = "def finish(b, w, e0, m, thread, threads, clock):\n    for k in range(thread, m, threads):\n"
    source += f"        if {conditions[where]}:\n            c = w.counters[k, {number}]\n"
    source += f"            {state.slots[entry.field]} = {results[entry.kind]}\n"
    return add, inline(generated("finish", source, i32=i32, nothing=u64(0), last=LAST, low=u64(0xFFFFFFFF)))
