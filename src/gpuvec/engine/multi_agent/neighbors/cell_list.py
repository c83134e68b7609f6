"""The search for the nearest agents with a list of the agents in each cell of a grid, whose cells are visited ring by ring.

The result is exactly that of a search that visits all agents. The cell is a monotone function of the position, so the distance
of agents outside of the visited rings has a lower bound in float32. The square of that bound, rounded as the distance is, is
not greater than the squared distance (design/0020). The cells cover all positions. An agent whose position is not finite has no
neighbors and is no neighbor, because its distances are not less than infinity.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DeviceFunction, EnvState, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.launch_mapping import STAGED_BYTES, count_cells
from gpuvec.engine.multi_agent.neighbors.knn_source import SOURCE_NAMES, initial_lines, insert_lines, store_lines
from gpuvec.engine.multi_agent.state_layout import WorkArrays
from gpuvec.observations import NearestNeighbors

f32, i32, i64 = np.float32, np.int32, np.int64
INT16_MAX_AGENTS = 1 << 15  # agents whose indices fit into two bytes
MARGIN = f32(0.01)  # in cells: more than the rounding error of two positions in a grid of at most `MAX_CELLS` cells
MIN_WIDTH, MAX_WIDTH = f32(1e-30), f32(1e30)  # of a cell, so that the inverse is a normal float32
INFINITY, NO_AGENT, INDEX_MASK = f32(np.inf), i32(-1), i64(2**31 - 1)


class CellList(NamedTuple):
    """The compiled functions that build the list and search with it.

    Each `thread` of the block calls them in this order, with a barrier between two of them.
    """

    arrays: WorkArrays  # arrays of the work for the list
    clear: DeviceFunction  # clear(w, thread): empties the list
    measure_extent: DeviceFunction  # measure_extent(w, s, thread): finds the extent of the positions, which the grid covers
    insert_agents: DeviceFunction  # insert_agents(w, s, thread): inserts all agents
    find_neighbors: DeviceFunction  # find_neighbors(i, s, p, w): writes agent i's row of the field


class _Geometry(NamedTuple):
    """The compiled functions that map positions to cells."""

    position: DeviceFunction  # position(i, s) -> (x, y) of agent i
    # grid(w, s) -> (x of the first cell, y, cells per unit of length, columns, rows)
    grid: DeviceFunction
    to_cells: DeviceFunction  # to_cells(x, first, scale) -> a coordinate in cells
    cell_index: DeviceFunction  # cell_index(x, count) -> the index of a coordinate's cell on an axis of `count` cells


def make_cell_list(ctx: MultiAgentContext) -> CellList | None:
    """Compiles the list of cells for a context `ctx`. None if there is no search, or one that visits all agents."""
    search, launch, agents = ctx.search, ctx.launch, ctx.num_agents
    one_thread = launch.threads_per_block == 1
    if search is None or not (one_thread or launch.search_blocks_per_env):
        return None
    count = count_cells(ctx.schema, None if one_thread else STAGED_BYTES)
    if not count:
        return None
    size, threads = 2 * count + 4, 1 if one_thread else launch.threads_per_search_block
    geometry = _make_geometry(ctx, search, count, size)
    arrays = {
        "cell_heads": (i32, (size,)),  # an agent in each cell, or -1
        "next_in_cell": (np.int16 if agents < INT16_MAX_AGENTS else i32, (agents,)),  # the next agent in the cell, or -1
        "extremes": (i64, (1, 4)),  # the leftmost, rightmost, lowest and highest agent, with their coordinates
    }
    return CellList(
        arrays,
        _make_clear(ctx, size, threads),
        _make_measure_extent(ctx, geometry, threads),
        _make_insert_agents(ctx, geometry, threads),
        _make_find_neighbors(ctx, search, geometry),
    )


@inline_function
def is_finite(x: np.float32, y: np.float32) -> bool:
    """Whether both coordinates of a position, `x` and `y`, are finite."""
    return bool(abs(x) < INFINITY and abs(y) < INFINITY)


def _make_geometry(ctx: MultiAgentContext, search: NearestNeighbors, count: int, size: int) -> _Geometry:
    """The grid for a list of about `count` cells, of which there are at most `size`."""
    assume_nonnegative, min_share, root = ctx.array_ops.assume_nonnegative, f32(1.0 / count), f32(1.0 / math.sqrt(count))
    x, y = [*(f"s.{field}[i]" for field in search.position[:2]), "f32(0.0)"][:2]
    position = inline_function(generate_function("position", f"def position(i, s):\n    return {x}, {y}\n", f32=f32))

    @inline_function
    def grid(w: Work, s: EnvState) -> tuple[np.float32, np.float32, np.float32, int, int]:
        # The grid has one cell if a float32 cannot represent the width of several cells.
        x0 = position(assume_nonnegative(w.extremes[0, 0] & INDEX_MASK), s)[0]
        y0 = position(assume_nonnegative(w.extremes[0, 2] & INDEX_MASK), s)[1]
        x1 = position(assume_nonnegative(w.extremes[0, 1] & INDEX_MASK), s)[0]
        y1 = position(assume_nonnegative(w.extremes[0, 3] & INDEX_MASK), s)[1]
        length, height = x1 - x0, y1 - y0
        width = max(math.sqrt(length) * math.sqrt(height) * root, max(length, height) * min_share)
        scale = f32(1.0) / width if width > MIN_WIDTH and width < MAX_WIDTH else f32(0.0)
        columns, rows = 1, 1
        if scale > f32(0.0):
            columns = min(assume_nonnegative(i32(length * scale)), count) + 1
            rows = min(min(assume_nonnegative(i32(height * scale)), count) + 1, size // columns)
        return x0, y0, scale, columns, rows

    @inline_function
    def to_cells(x: np.float32, first: np.float32, scale: np.float32) -> np.float32:
        return (x - first) * scale if scale > f32(0.0) else f32(0.0)

    @inline_function
    def cell_index(x: np.float32, count: int) -> Any:
        return min(assume_nonnegative(i32(x)), count - 1)

    return _Geometry(position, grid, to_cells, cell_index)


def _make_clear(ctx: MultiAgentContext, size: int, threads: int) -> DeviceFunction:
    """`clear` as in `CellList`."""
    assume_nonnegative = ctx.array_ops.assume_nonnegative

    @inline_function
    def clear(w: Work, thread: int) -> None:
        u = thread
        while u < size:
            w.cell_heads[u] = NO_AGENT
            u = assume_nonnegative(u + threads)
        u = thread
        while u < 4:
            w.extremes[0, u] = i64(0)
            u = assume_nonnegative(u + threads)

    return clear


def _make_measure_extent(ctx: MultiAgentContext, geometry: _Geometry, threads: int) -> DeviceFunction:
    """`measure_extent` as in `CellList`."""
    agents, position, ordered_bits = ctx.num_agents, geometry.position, ctx.array_ops.ordered_bits
    assume_nonnegative, update_max_by_block = ctx.array_ops.assume_nonnegative, ctx.counters.update_max_by_block

    @inline_function
    def farther(extreme: np.int64, x: np.float32, i: int) -> np.int64:
        # Returns the extreme so far, or agent i if its coordinate is larger.
        return max(extreme, i64(ordered_bits(x)) << i64(31) | i64(i))

    @inline_function
    def measure_extent(w: Work, s: EnvState, thread: int) -> None:
        left, right, bottom, top, u = i64(0), i64(0), i64(0), i64(0), thread
        while u < agents:
            x, y = position(u, s)
            if is_finite(x, y):
                left, right = farther(left, -x, u), farther(right, x, u)
                bottom, top = farther(bottom, -y, u), farther(top, y, u)
            u = assume_nonnegative(u + threads)
        update_max_by_block(w.extremes, 0, 0, left)
        update_max_by_block(w.extremes, 0, 1, right)
        update_max_by_block(w.extremes, 0, 2, bottom)
        update_max_by_block(w.extremes, 0, 3, top)

    return measure_extent


def _make_insert_agents(ctx: MultiAgentContext, geometry: _Geometry, threads: int) -> DeviceFunction:
    """`insert_agents` as in `CellList`."""
    agents, (position, grid, to_cells, cell_index) = ctx.num_agents, geometry
    assume_nonnegative, atomic_exchange = ctx.array_ops.assume_nonnegative, ctx.array_ops.atomic_exchange

    @inline_function
    def insert_agents(w: Work, s: EnvState, thread: int) -> None:
        x0, y0, scale, columns, rows = grid(w, s)
        u = thread
        while u < agents:
            x, y = position(u, s)
            if is_finite(x, y):
                cell = cell_index(to_cells(x, x0, scale), columns) + columns * cell_index(to_cells(y, y0, scale), rows)
                w.next_in_cell[u] = atomic_exchange(w.cell_heads, assume_nonnegative(cell), i32(u))
            u = assume_nonnegative(u + threads)

    return insert_agents


@inline_function
def gap_to_outside(x: np.float32, cell: int, ring: int, cells: int) -> np.float32:
    """Returns the distance of a coordinate to the nearest cell of its axis that is outside of a ring, in cells.

    Args:
        x: the coordinate in cells.
        cell: the index of its cell.
        ring: the number of the ring around that cell.
        cells: the number of cells of the axis.
    """
    before = x - f32(cell - ring) if cell - ring > 0 else INFINITY
    return min(before, f32(cell + ring + 1) - x) if cell + ring < cells - 1 else before


def _make_min_distance(squared: bool) -> DeviceFunction:
    """`min_distance(gap, scale)`: a lower bound of the distance, or of its square, to agents at least `gap` cells away."""

    @inline_function
    def min_distance(gap: np.float32, scale: np.float32) -> np.float32:
        length = max(gap - MARGIN, f32(0.0)) / scale
        return length * length if squared else length

    return min_distance


def _make_find_neighbors(ctx: MultiAgentContext, search: NearestNeighbors, geometry: _Geometry) -> DeviceFunction:
    """`find_neighbors` as in `CellList`. Its source is generated, because each of the nearest agents has its own variables."""
    num_nearest = ctx.schema.array_fields[search.field].shape[1]
    source = "def find_neighbors(i, s, p, w):\n    x, y = position(i, s)\n" + initial_lines(num_nearest, "    ")
    source += f"""    more, ring = is_finite(x, y), 0
    x0, y0, scale, columns, rows = grid(w, s) if more else (zero, zero, zero, 1, 1)
    x, y = to_cells(x, x0, scale), to_cells(y, y0, scale)
    column, row = cell_index(x, columns), cell_index(y, rows)
    while more:
        v = max(row - ring, 0)
        while v <= min(row + ring, rows - 1):
            is_edge = abs(v - row) == ring
            u = column - ring
            if u < 0:
                u = 0 if is_edge else column + ring
            while u <= min(column + ring, columns - 1):
                j = assume_nonnegative(w.cell_heads[assume_nonnegative(v * columns + u)] + 1)
                while j > 0:
                    j = assume_nonnegative(j - 1)
                    d = f32(distance(i, j, s, p))
{insert_lines(num_nearest, " " * 20, in_order=False)}                    j = assume_nonnegative(w.next_in_cell[j] + 1)
                u += 1 if is_edge else 2 * ring
            v += 1
        gap = min(gap_to_outside(x, column, ring, columns), gap_to_outside(y, row, ring, rows))
        more = gap < infinity and not d{num_nearest - 1} < min_distance(gap, scale)
        ring += 1
"""
    scope: dict[str, Any] = geometry._asdict() | {"is_finite": is_finite, "gap_to_outside": gap_to_outside, "zero": f32(0.0)}
    scope |= {"min_distance": _make_min_distance(bool(search.squared)), "distance": device_function(search.distance)}
    scope |= {"assume_nonnegative": ctx.array_ops.assume_nonnegative} | SOURCE_NAMES
    return inline_function(
        generate_function("find_neighbors", source + store_lines(search.field, num_nearest, "    "), **scope)
    )
