"""The search for neighbors among all agents or in a list of cells, in the first kernel or in one of its own (design/0020).

A search runs in segments of the first kernel, or in a second kernel. There the threads of a block first collect the agents
that search. Otherwise the threads of agents that do not search would wait for the others of their warp. The last state of an
episode, from which final observations are computed, is a further task.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvState, Work
from gpuvec.engine.layout.buffers import named_tuple
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.launch_mapping import STAGED_BYTES, count_cells
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess, WorkArrays
from gpuvec.observations import NearestNeighbors

# Source of searches that keep the K nearest agents in registers: d0, d1, ... are their distances, j0, j1, ... the agents.
#
# The lines are generated, because Numba has no loop over variables. Element k of the result is (dk, jk).


T = TypeVar("T", float, int)


def initial_lines(num_nearest: int, margin: str) -> str:
    """Returns lines that initialise all elements to no agent.

    Args:
        num_nearest: K.
        margin: spaces before each line.
    """
    return "".join(f"{margin}d{k}, j{k} = infinity, no_agent\n" for k in range(num_nearest))


def insert_lines(num_nearest: int, margin: str, in_order: bool) -> str:
    """Returns lines that insert agent j at distance d if it is among the K nearest.

    Farther agents move by selects, without a branch on the position of the new agent.

    Args:
        num_nearest: K.
        margin: spaces before each line.
        in_order: whether agents are inserted in ascending order, so that of equally near ones the new agent comes last.
    """
    last, inner = num_nearest - 1, margin + "    "
    lines = f"{margin}if d < d{last}:\n" if in_order else f"{margin}if d < infinity and d <= d{last}:\n"
    lines += f"{inner}n = i32(j)\n"
    lines += "".join(
        f"{inner}c{k} = " + (f"d < d{k}\n" if in_order else f"is_nearer(d, n, d{k}, j{k})\n") for k in range(num_nearest)
    )
    for k in reversed(range(1, num_nearest)):
        lines += f"{inner}d{k} = select_element(c{k}, c{k - 1}, d{k}, d{k - 1}, d)\n"
        lines += f"{inner}j{k} = select_element(c{k}, c{k - 1}, j{k}, j{k - 1}, n)\n"
    return lines + f"{inner}d0, j0 = d if c0 else d0, n if c0 else j0\n"


def store_lines(field: str, num_nearest: int, margin: str) -> str:
    """Returns lines that write agent i's row of a field.

    Args:
        field: the name of the field.
        num_nearest: K.
        margin: spaces before each line.
    """
    return "".join(f"{margin}s.{field}[i, {k}] = j{k}\n" for k in range(num_nearest))


@inline_function
def is_nearer(d: float, j: int, other_d: float, other_j: int) -> bool:
    """Returns whether agent `j` at distance `d` comes before `other_j` at `other_d`; of equally near ones the lower does."""
    return bool(d < other_d or (d == other_d and j < other_j))


@inline_function
def select_element(is_before: bool, is_before_previous: bool, current: T, previous: T, new: T) -> T:
    """Returns the value of an element after an insertion.

    It is a function of its own, because many branches in one function take long to compile.

    Args:
        is_before: whether the new agent is nearer than the agent of this element.
        is_before_previous: whether the new agent is nearer than the agent of the element before.
        current: the value of this element.
        previous: the value of the element before.
        new: the value of the new agent.
    """
    return (previous if is_before_previous else new) if is_before else current


# The names that the lines use.
SOURCE_NAMES: dict[str, Any] = {
    "f32": f32,
    "i32": i32,
    "infinity": f32(np.inf),
    "no_agent": i32(-1),
    "select_element": select_element,
    "is_nearer": is_nearer,
}


# The search for the K nearest among all agents of an env: an agent visits all others and keeps the nearest in registers.


# With more agents, too few bits of a key are left for the distance to distinguish most agents.
KEYS_MAX_AGENTS = 1024
BATCH_SIZE = 8  # agents whose keys are merged together
INFINITY_BITS = 0x7F800000  # of the float32 infinity; the bits of finite nonnegative numbers are less


class KnnFunctions(NamedTuple):
    """The compiled functions that search for one agent, and write its row of the field."""

    searches: DeviceFunction  # searches(i, s, p) -> whether agent i searches
    clear_row: DeviceFunction  # clear_row(i, s): writes a row without neighbors for agent i
    knn_by_distance: DeviceFunction  # knn_by_distance(i, s, p): searches, and writes agent i's row
    knn_by_key: DeviceFunction  # knn_by_key(i, s, p): as `knn_by_distance`, without a branch for each agent


def make_knn(ctx: MultiAgentContext, search: NearestNeighbors) -> KnnFunctions:
    """Compiles the functions of a search.

    Args:
        ctx: the context.
        search: the author's declaration of the search.
    """
    agents, num_nearest = ctx.num_agents, ctx.schema.array_fields[search.field].shape[1]
    searches = every_agent if search.mask is None else device_function(search.mask)
    clear_lines = "".join(f"    s.{search.field}[i, {k}] = i32(-1)\n" for k in range(num_nearest))
    clear_row = inline_function(generate_function("clear_row", f"def clear_row(i, s):\n{clear_lines}", i32=i32))
    scope = {"distance": device_function(search.distance)} | SOURCE_NAMES
    source = "def knn_by_distance(i, s, p):\n" + initial_lines(num_nearest, "    ") + f"    for j in range({agents}):\n"
    source += "        d = f32(distance(i, j, s, p))\n" + insert_lines(num_nearest, "        ", in_order=True)
    source += store_lines(search.field, num_nearest, "    ")
    knn_by_distance = inline_function(generate_function("knn_by_distance", source, **scope))
    knn_by_key = knn_by_distance
    if agents <= KEYS_MAX_AGENTS:
        scope |= {"pack_key": ctx.array_ops.pack_key, "merge_k_smallest": ctx.array_ops.merge_k_smallest}
        scope |= {"add_nonnegative": ctx.array_ops.add_nonnegative, "knn_by_distance": knn_by_distance}
        knn_by_key = _knn_by_key(search, agents, num_nearest, scope)
    return KnnFunctions(searches, clear_row, knn_by_distance, knn_by_key)


def _knn_by_key(search: NearestNeighbors, agents: int, num_nearest: int, scope: dict[str, Any]) -> DeviceFunction:
    """`knn_by_key` as in `KnnFunctions`.

    A key has the bits of a distance, except for the lowest bits, which hold the agent. All keys are different. Their order is
    that of the distances, unless two successive keys have the same bits of the distance: then the search by distance writes
    the row. One key more than the row has agents shows whether the last one is certain.
    """
    low_bits = (1 << max(1, (agents - 1).bit_length())) - 1
    remainder = agents % BATCH_SIZE
    keys = [f"k{k}" for k in range(num_nearest + 1)]

    def merge_batch(margin: str, count: int) -> str:
        """Lines that merge the keys of `count` agents from j on."""
        lines = [f"n{n} = add_nonnegative(j, {n})" for n in range(count)]
        lines += [f"l{n} = pack_key(distance(i, n{n}, s, p), {low_bits}, n{n})" for n in range(count)]
        batch = [f"l{n}" for n in range(count)] + ["last_key"] * (BATCH_SIZE - count)
        lines.append(f"best = merge_k_smallest(best, ({', '.join(batch)}))")
        return "".join(f"{margin}{line}\n" for line in lines)

    source = f"def knn_by_key(i, s, p):\n    best, j = ({'last_key, ' * len(keys)}), zero\n"
    source += merge_batch("    ", remainder) + f"    j = i32({remainder})\n" if remainder else ""
    source += f"    while j < {agents}:\n{merge_batch('        ', BATCH_SIZE)}        j = i32(j + i32({BATCH_SIZE}))\n"
    source += f"    {', '.join(keys)} = best\n"
    distinct = [f"(({a} ^ {b}) > low_bits) | ({a} >= infinity_bits)" for a, b in pairwise(keys)]
    source += "    is_certain = (k0 >= zero)" + "".join(f" & ({condition})" for condition in distinct) + "\n"
    for k in range(num_nearest):
        source += f"    s.{search.field}[i, {k}] = k{k} & low_bits if k{k} < infinity_bits else i32(-1)\n"
    source += "    if not is_certain:\n        knn_by_distance(i, s, p)\n"
    constants = {"last_key": i32(2**31 - 1), "low_bits": i32(low_bits), "infinity_bits": i32(INFINITY_BITS), "zero": i32(0)}
    return inline_function(generate_function("knn_by_key", source, **scope, **constants))


# The search for the nearest agents with a list of the agents in each cell of a grid, whose cells are visited ring by ring.
#
# The result is exactly that of a search that visits all agents. The cell is a monotone function of the position, so the
# distance of agents outside of the visited rings has a lower bound in float32. The square of that bound, rounded as the
# distance is, is not greater than the squared distance (design/0020). The cells cover all positions. An agent whose position is
# not finite has no neighbors and is no neighbor, because its distances are not less than infinity.


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
