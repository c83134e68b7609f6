"""The search for nearest agents among many: a list of who is in which cell of the plane, which a seeker walks ring by ring.

It finds exactly what a walk over all agents finds. A cell is a monotone function of a place, so who is in no ring so far is
away by what a float32 tells, and a square of that, rounded as the distance is, is not more than the distance (design/0020).
The cells cover the places that there are, whatever these are; who has no finite place is found by nobody and finds nobody,
since no distance to it is less than infinity.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.multi_agent.neighbors.knn import WALK, keep, nobody_yet, written
from gpuvec.engine.multi_agent.neighbors.metric import Metric
from gpuvec.spec import NearestNeighbors

f32, i32, i64 = np.float32, np.int32, np.int64
SHORT = 1 << 15  # agents, below which two bytes tell one
MARGIN = f32(0.01)  # of a cell: more than the roundings of two places, in cells, of which there are `mapping.CELLS`
SMALLEST, LARGEST = f32(1e-30), f32(1e30)  # widths of a cell whose inverse float32 can hold


class CellList(NamedTuple):
    """The functions of composed code that deal with the list, which is in the work; `thread` is one of those who share it."""

    arrays: dict[str, tuple[Any, tuple[int, ...]]]  # of the work: {name: (dtype, shape)}
    clear: Any  # clear(w, thread): an empty list
    measure: Any  # measure(w, s, thread): and then, which part of the plane it covers
    link: Any  # link(w, s, thread): and then, who is where
    find: Any  # find(i, s, p, w): and then, agent i's row of the field


def cells(
    look: NearestNeighbors, known: Metric, count: int, agents: int, places: int, threads: int, array_ops: ArrayOps, tally: Any
) -> CellList:
    """Their versions for `look`, whose distance is `known`, in about `count` cells."""
    assume_nonnegative, ordered_bits, atomic_exchange, most_of_block = (
        array_ops.assume_nonnegative,
        array_ops.ordered_bits,
        array_ops.atomic_exchange,
        tally.most_of_block,
    )
    size, thinnest, root = 2 * count + 4, f32(1.0 / count), f32(1.0 / math.sqrt(count))
    inf, none, index = f32(np.inf), i32(-1), i64(2**31 - 1)
    two = [f"s.{field}[i]" for field in known.fields[:2]] + ["f32(0.0)"]
    place = inline_function(generate_function("place", f"def place(i, s):\n    return {two[0]}, {two[1]}\n", f32=f32))

    @inline_function
    def finite(x: float, y: float) -> bool:
        return bool(abs(x) < inf and abs(y) < inf)

    @inline_function
    def clear(w: Any, thread: int) -> None:
        u = thread
        while u < size:
            w.head[u] = none
            u = assume_nonnegative(u + threads)
        u = thread
        while u < 4:
            w.ends[0, u] = i64(0)
            u = assume_nonnegative(u + threads)

    @inline_function
    def further(end: Any, x: float, i: int) -> Any:
        """The end, or agent i if its x is larger."""
        return max(end, i64(ordered_bits(x)) << i64(31) | i64(i))

    @inline_function
    def measure(w: Any, s: Any, thread: int) -> None:
        left, right, low, high, u = i64(0), i64(0), i64(0), i64(0), thread
        while u < agents:
            x, y = place(u, s)
            if finite(x, y):
                left, right = further(left, -x, u), further(right, x, u)
                low, high = further(low, -y, u), further(high, y, u)
            u = assume_nonnegative(u + threads)
        most_of_block(w.ends, 0, 0, left)
        most_of_block(w.ends, 0, 1, right)
        most_of_block(w.ends, 0, 2, low)
        most_of_block(w.ends, 0, 3, high)

    @inline_function
    def grid(w: Any, s: Any) -> Any:
        """(x of the first cell, y, cells per unit of length, columns, rows); one cell if a float32 cannot tell more."""
        x0, y0 = place(assume_nonnegative(w.ends[0, 0] & index), s)[0], place(assume_nonnegative(w.ends[0, 2] & index), s)[1]
        x1, y1 = place(assume_nonnegative(w.ends[0, 1] & index), s)[0], place(assume_nonnegative(w.ends[0, 3] & index), s)[1]
        wide, high = x1 - x0, y1 - y0
        width = max(math.sqrt(wide) * math.sqrt(high) * root, max(wide, high) * thinnest)
        scale = f32(1.0) / width if width > SMALLEST and width < LARGEST else f32(0.0)
        columns, rows = 1, 1
        if scale > f32(0.0):
            columns = min(assume_nonnegative(i32(wide * scale)), count) + 1
            rows = min(min(assume_nonnegative(i32(high * scale)), count) + 1, size // columns)
        return x0, y0, scale, columns, rows

    @inline_function
    def scaled(x: float, first: float, scale: float) -> Any:
        return (x - first) * scale if scale > f32(0.0) else f32(0.0)

    @inline_function
    def cell(x: float, cells: int) -> Any:
        return min(assume_nonnegative(i32(x)), cells - 1)

    @inline_function
    def link(w: Any, s: Any, thread: int) -> None:
        x0, y0, scale, columns, rows = grid(w, s)
        u = thread
        while u < agents:
            x, y = place(u, s)
            if finite(x, y):
                k = cell(scaled(x, x0, scale), columns) + columns * cell(scaled(y, y0, scale), rows)
                w.following[u] = atomic_exchange(w.head, assume_nonnegative(k), i32(u))
            u = assume_nonnegative(u + threads)

    @inline_function
    def beyond(x: float, at: int, ring: int, cells: int) -> Any:
        """How far x, which is in cell `at`, is from the cells of its axis that are outside the ring, in cells."""
        before = x - f32(at - ring) if at - ring > 0 else inf
        return min(before, f32(at + ring + 1) - x) if at + ring < cells - 1 else before

    @inline_function
    def least(gap: float, scale: float) -> Any:
        """The least distance of who is so many cells away."""
        away = max(gap - MARGIN, f32(0.0)) / scale
        return away * away if squared else away

    squared = known.squared
    source = "def find(i, s, p, w):\n    x, y = place(i, s)\n" + nobody_yet(places, "    ")
    source += f"""    more, ring = finite(x, y), 0
    x0, y0, scale, columns, rows = grid(w, s) if more else (zero, zero, zero, 1, 1)
    x, y = scaled(x, x0, scale), scaled(y, y0, scale)
    column, row = cell(x, columns), cell(y, rows)
    while more:
        v = max(row - ring, 0)
        while v <= min(row + ring, rows - 1):
            whole = abs(v - row) == ring
            u = column - ring
            if u < 0:
                u = 0 if whole else column + ring
            while u <= min(column + ring, columns - 1):
                j = assume_nonnegative(w.head[assume_nonnegative(v * columns + u)] + 1)
                while j > 0:
                    j = assume_nonnegative(j - 1)
                    d = f32(distance(i, j, s, p))
{keep(places, " " * 20, in_order=False)}                    j = assume_nonnegative(w.following[j] + 1)
                u += 1 if whole else 2 * ring
            v += 1
        gap = min(beyond(x, column, ring, columns), beyond(y, row, ring, rows))
        more = gap < far and not d{places - 1} < least(gap, scale)
        ring += 1
"""
    scope = {"place": place, "finite": finite, "grid": grid, "scaled": scaled, "cell": cell, "beyond": beyond, "least": least}
    scope |= {"assume_nonnegative": assume_nonnegative, "distance": device_function(look.distance), "zero": f32(0.0)}
    find = inline_function(generate_function("find", source + written(look.field, places, "    "), **scope, **WALK))
    held = {
        "head": (i32, (size,)),  # of each cell: an agent in it, or -1
        "following": (np.int16 if agents < SHORT else i32, (agents,)),  # the next in its cell, or -1
        "ends": (i64, (1, 4)),  # who is furthest to the left, right, low and high, and how far
    }
    return CellList(held, clear, measure, link, find)
