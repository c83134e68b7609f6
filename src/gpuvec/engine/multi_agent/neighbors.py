"""The search for neighbors among all agents or in a list of cells, in the first kernel or in one of its own (design/0020).

A search runs in segments of the first kernel, or in a second kernel. There the threads of a block first collect the agents
that search. Otherwise the threads of agents that do not search would wait for the others of their warp. The last state of an
episode, from which final observations are computed, is a further task.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64
from gpuvec.engine.compiler.functions import bind, device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Work
from gpuvec.engine.layout.buffers import named_tuple
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.launch_mapping import STAGED_BYTES, count_cells
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import WorkArrays
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


class CellList(NamedTuple):
    """A list of cells, in arrays of the work."""

    arrays: WorkArrays  # arrays of the work for the list
    values: dict[str, Any]  # with which `bind` compiles the functions that build the list and search with it


class KnnFunctions(NamedTuple):
    """The compiled functions that search for one agent, and write its row of the field."""

    searches: DeviceFunction  # searches(i, s, p) -> whether agent i searches
    clear_row: DeviceFunction  # clear_row(i, s): writes a row without neighbors for agent i
    knn_by_distance: DeviceFunction  # knn_by_distance(i, s, p, w): searches, and writes agent i's row; `w` is not read
    knn_by_key: DeviceFunction  # knn_by_key(i, s, p, w): as `knn_by_distance`, without a branch for each agent
    cell_list: CellList | None  # None if an agent visits all others


def make_knn(ctx: MultiAgentContext) -> KnnFunctions | None:
    """Compiles the functions of the search for a context `ctx`; None if there is no search."""
    if ctx.schema.search is None:
        return None
    num_nearest = ctx.schema.array_fields[ctx.schema.search.field].shape[1]
    searches = every_agent if ctx.schema.search.mask is None else device_function(ctx.schema.search.mask)
    clear_lines = "".join(f"    s.{ctx.schema.search.field}[i, {k}] = i32(-1)\n" for k in range(num_nearest))
    clear_row = inline_function(generate_function("clear_row", f"def clear_row(i, s):\n{clear_lines}", i32=i32))
    scope = {"distance": device_function(ctx.schema.search.distance)} | SOURCE_NAMES
    source = (
        "def knn_by_distance(i, s, p, w):\n" + initial_lines(num_nearest, "    ") + f"    for j in range({ctx.num_agents}):\n"
    )
    source += "        d = f32(distance(i, j, s, p))\n" + insert_lines(num_nearest, "        ", in_order=True)
    source += store_lines(ctx.schema.search.field, num_nearest, "    ")
    knn_by_distance = inline_function(generate_function("knn_by_distance", source, **scope))
    cell_list = make_cell_list(ctx, ctx.schema.search)
    if ctx.num_agents > KEYS_MAX_AGENTS:
        return KnnFunctions(searches, clear_row, knn_by_distance, knn_by_distance, cell_list)
    # A key has the bits of a distance, except for the lowest bits, which hold the agent. All keys are different. Their order is
    # that of the distances, unless two successive keys have the same bits of the distance: then the search by distance writes
    # the row. One key more than the row has agents shows whether the last one is certain.
    low_bits = (1 << max(1, (ctx.num_agents - 1).bit_length())) - 1
    remainder = ctx.num_agents % BATCH_SIZE
    keys = [f"k{k}" for k in range(num_nearest + 1)]

    def merge_batch(margin: str, count: int) -> str:
        """Lines that merge the keys of `count` agents from j on."""
        lines = [f"n{n} = add_nonnegative(j, {n})" for n in range(count)]
        lines += [f"l{n} = pack_key(distance(i, n{n}, s, p), {low_bits}, n{n})" for n in range(count)]
        batch = [f"l{n}" for n in range(count)] + ["last_key"] * (BATCH_SIZE - count)
        lines.append(f"best = merge_k_smallest(best, ({', '.join(batch)}))")
        return "".join(f"{margin}{line}\n" for line in lines)

    source = f"def knn_by_key(i, s, p, w):\n    best, j = ({'last_key, ' * len(keys)}), zero\n"
    source += merge_batch("    ", remainder) + f"    j = i32({remainder})\n" if remainder else ""
    source += f"    while j < {ctx.num_agents}:\n{merge_batch('        ', BATCH_SIZE)}        j = i32(j + i32({BATCH_SIZE}))\n"
    source += f"    {', '.join(keys)} = best\n"
    distinct = [f"(({a} ^ {b}) > low_bits) | ({a} >= infinity_bits)" for a, b in pairwise(keys)]
    source += "    is_certain = (k0 >= zero)" + "".join(f" & ({condition})" for condition in distinct) + "\n"
    for k in range(num_nearest):
        source += f"    s.{ctx.schema.search.field}[i, {k}] = k{k} & low_bits if k{k} < infinity_bits else i32(-1)\n"
    source += "    if not is_certain:\n        knn_by_distance(i, s, p, w)\n"
    scope |= {"last_key": i32(2**31 - 1), "low_bits": i32(low_bits), "infinity_bits": i32(INFINITY_BITS), "zero": i32(0)}
    scope |= {"pack_key": ctx.array_ops.pack_key, "merge_k_smallest": ctx.array_ops.merge_k_smallest}
    scope |= {"add_nonnegative": ctx.array_ops.add_nonnegative, "knn_by_distance": knn_by_distance}
    knn_by_key = inline_function(generate_function("knn_by_key", source, **scope))
    return KnnFunctions(searches, clear_row, knn_by_distance, knn_by_key, cell_list)


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


# What the functions below read: the context, the functions for one agent, the condition of a segment;
# the size of a list of cells, the number of cells that it aims at, the threads that build it, and the position of an agent.
ctx: Any = None
knn: Any = None
condition: Any = None
position: Any = None
find_neighbors: Any = None
list_size, num_cells, list_threads, search_threads, blocks_per_env = 0, 0, 0, 0, 0
min_share, root = f32(0.0), f32(0.0)
same_step, is_squared = False, False


def is_finite(x: np.float32, y: np.float32) -> bool:
    """Returns whether both coordinates of a position are finite."""
    return bool(abs(x) < INFINITY and abs(y) < INFINITY)


def agent_of(extreme: int) -> int:
    """Returns the agent of an element of `w.extremes`."""
    return ctx.array_ops.assume_nonnegative(extreme & INDEX_MASK)


def grid(w: Work, s: EnvState) -> tuple[np.float32, np.float32, np.float32, int, int]:
    """Returns (x of the first cell, y, cells per unit of length, columns, rows)."""
    # The grid has one cell if a float32 cannot represent the width of several cells.
    x0, y0 = position(agent_of(w.extremes[0, 0]), s)[0], position(agent_of(w.extremes[0, 2]), s)[1]
    x1, y1 = position(agent_of(w.extremes[0, 1]), s)[0], position(agent_of(w.extremes[0, 3]), s)[1]
    length, height = x1 - x0, y1 - y0
    width = max(math.sqrt(length) * math.sqrt(height) * root, max(length, height) * min_share)
    scale = f32(1.0) / width if width > MIN_WIDTH and width < MAX_WIDTH else f32(0.0)
    columns, rows = 1, 1
    if scale > f32(0.0):
        columns = min(ctx.array_ops.assume_nonnegative(i32(length * scale)), num_cells) + 1
        rows = min(min(ctx.array_ops.assume_nonnegative(i32(height * scale)), num_cells) + 1, list_size // columns)
    return x0, y0, scale, columns, rows


def to_cells(x: np.float32, first: np.float32, scale: np.float32) -> np.float32:
    """Returns a coordinate in cells."""
    return (x - first) * scale if scale > f32(0.0) else f32(0.0)


def cell_index(x: np.float32, count: int) -> Any:
    """Returns the index of a coordinate's cell on an axis of `count` cells."""
    return min(ctx.array_ops.assume_nonnegative(i32(x)), count - 1)


# The threads of a block call the next three functions in this order, with a barrier between two of them, and then search.


def clear_list(w: Work, thread: int) -> None:
    """Empties the list."""
    u = thread
    while u < list_size:
        w.cell_heads[u] = NO_AGENT
        u = ctx.array_ops.assume_nonnegative(u + list_threads)
    u = thread
    while u < 4:
        w.extremes[0, u] = i64(0)
        u = ctx.array_ops.assume_nonnegative(u + list_threads)


def farther(extreme: np.int64, x: np.float32, i: int) -> np.int64:
    """Returns the extreme so far, or agent i if its coordinate is larger."""
    return max(extreme, i64(ctx.array_ops.ordered_bits(x)) << i64(31) | i64(i))


def measure_list(w: Work, s: EnvState, thread: int) -> None:
    """Finds the extent of the positions, which the grid covers."""
    left, right, bottom, top, u = i64(0), i64(0), i64(0), i64(0), thread
    while u < ctx.num_agents:
        x, y = position(u, s)
        if is_finite(x, y):
            left, right = farther(left, -x, u), farther(right, x, u)
            bottom, top = farther(bottom, -y, u), farther(top, y, u)
        u = ctx.array_ops.assume_nonnegative(u + list_threads)
    ctx.counters.update_max_by_block(w.extremes, 0, 0, left)
    ctx.counters.update_max_by_block(w.extremes, 0, 1, right)
    ctx.counters.update_max_by_block(w.extremes, 0, 2, bottom)
    ctx.counters.update_max_by_block(w.extremes, 0, 3, top)


def insert_agents(w: Work, s: EnvState, thread: int) -> None:
    """Inserts all agents."""
    x0, y0, scale, columns, rows = grid(w, s)
    u = thread
    while u < ctx.num_agents:
        x, y = position(u, s)
        if is_finite(x, y):
            cell = cell_index(to_cells(x, x0, scale), columns) + columns * cell_index(to_cells(y, y0, scale), rows)
            w.next_in_cell[u] = ctx.array_ops.atomic_exchange(w.cell_heads, ctx.array_ops.assume_nonnegative(cell), i32(u))
        u = ctx.array_ops.assume_nonnegative(u + list_threads)


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


def min_distance(gap: np.float32, scale: np.float32) -> np.float32:
    """Returns a lower bound of the distance, or of its square, to agents at least `gap` cells away."""
    length = max(gap - MARGIN, f32(0.0)) / scale
    return length * length if is_squared else length


def make_cell_list(ctx: MultiAgentContext, search: NearestNeighbors) -> CellList | None:
    """Compiles the list of cells for a search of a context `ctx`. None if an agent visits all others.

    The source of `find_neighbors(i, s, p, w)`, which writes agent i's row, is generated: each of the nearest agents has its own
    variables.
    """
    launch, agents, num_nearest = ctx.launch, ctx.num_agents, ctx.schema.array_fields[search.field].shape[1]
    one_thread = launch.threads_per_block == 1
    if not (one_thread or launch.search_blocks_per_env):
        return None
    count = count_cells(ctx.schema, None if one_thread else STAGED_BYTES)
    if not count:
        return None
    size, threads = 2 * count + 4, 1 if one_thread else launch.threads_per_search_block
    arrays: WorkArrays = {
        "cell_heads": (i32, (size,)),  # an agent in each cell, or -1
        "next_in_cell": (np.int16 if agents < INT16_MAX_AGENTS else i32, (agents,)),  # the next agent in the cell, or -1
        "extremes": (i64, (1, 4)),  # the leftmost, rightmost, lowest and highest agent, with their coordinates
    }
    x, y = [*(f"s.{field}[i]" for field in search.position[:2]), "f32(0.0)"][:2]
    position = inline_function(generate_function("position", f"def position(i, s):\n    return {x}, {y}\n", f32=f32))
    values = {"ctx": ctx, "position": position, "list_size": size, "num_cells": count, "list_threads": threads}
    values |= {"min_share": f32(1.0 / count), "root": f32(1.0 / math.sqrt(count)), "is_squared": bool(search.squared)}
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
    functions = (grid, to_cells, cell_index, is_finite, gap_to_outside, min_distance)
    scope: dict[str, Any] = {function.__name__: bind(function, **values) for function in functions} | {"zero": f32(0.0)}
    scope |= {"position": position, "distance": device_function(search.distance)}
    scope |= {"assume_nonnegative": ctx.array_ops.assume_nonnegative} | SOURCE_NAMES
    source += store_lines(search.field, num_nearest, "    ")
    return CellList(arrays, values | {"find_neighbors": inline_function(generate_function("find_neighbors", source, **scope))})


class NeighborSearch(NamedTuple):
    """The functions of a kernel that searches, with a barrier after each. They run in one or two rounds."""

    work: type[Work]  # the NamedTuple class of `w`
    arrays: WorkArrays  # the fields of `w`
    num_rounds: DeviceFunction  # num_rounds(b, block, is_step) -> the number of rounds of a block
    functions: tuple[DeviceFunction, ...]  # function(b, w, block, thread, is_step, round_index)


def search_segments(ctx: MultiAgentContext, knn: KnnFunctions, condition: DeviceFunction) -> list[Segment]:
    """Compiles the segments of a search in the first kernel. It uses a list of cells only if one thread runs an env.

    Args:
        ctx: the context.
        knn: the functions of the search.
        condition: `condition(w, k)` -> whether the search runs in env k of the block.
    """
    values = {"ctx": ctx, "knn": knn, "condition": condition, "find_neighbors": knn.knn_by_distance}
    if knn.cell_list is None:
        return [Segment(AGENTS, bind(search_agent, **values))]
    values |= knn.cell_list.values
    return [Segment(ENVS, bind(build_list, **values)), Segment(AGENTS, bind(search_agent, **values))]


def write_row(i: int, s: EnvState, p: EnvParams, w: Work) -> None:
    """Writes agent i's row of the field, without neighbors if the agent does not search."""
    if knn.searches(i, s, p):
        find_neighbors(i, s, p, w)
    else:
        knn.clear_row(i, s)


def search_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Searches for the neighbors of agent i."""
    if condition(w, k):
        write_row(i, ctx.access.state(b, w, e, k), ctx.params(b, e), w)


def build_list(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Builds the list of cells by one thread."""
    if condition(w, k):
        s = ctx.access.state(b, w, e, k)
        clear_list(w, 0)
        measure_list(w, s, 0)
        insert_agents(w, s, 0)


def make_neighbor_search(ctx: MultiAgentContext, knn: KnnFunctions) -> NeighborSearch:
    """Compiles the functions of the second kernel.

    With a list of cells, the kernel has several blocks for each env. Each of them builds the whole list, which takes little
    time and fits into shared memory. A second round searches the last state of an episode that ended. Otherwise it has a thread
    for each agent, and distributes the agents that search over all threads.

    Args:
        ctx: the context.
        knn: the functions of the search.
    """
    values = {"ctx": ctx, "knn": knn, "same_step": ctx.options.same_step}
    values |= {"search_threads": ctx.launch.threads_per_search_block, "blocks_per_env": ctx.launch.search_blocks_per_env}
    arrays: WorkArrays = {"num_tasks": (i32, (1,)), "tasks": (i32, (2 * ctx.launch.threads_per_search_block,))}
    functions: tuple[Callable[..., None], ...] = (clear_tasks, collect_tasks, search_tasks)
    if knn.cell_list is not None:
        arrays, values = knn.cell_list.arrays, values | knn.cell_list.values
        functions = (clear_cells, measure_cells, insert_cells, search_cells)
    compiled = tuple(bind(function, **values) for function in functions)
    return NeighborSearch(named_tuple("Work", tuple(arrays)), arrays, bind(rounds_of_block, **values), compiled)


def state_of(b: Batch, e: int, is_final: bool) -> EnvState:
    """Returns the state of env e, or the last state of its episode that ended."""
    if same_step:
        return ctx.access.current_or_final(b, e, is_final)
    return ctx.access.from_global(b, e)


def clear_tasks(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
    """Empties the list of agents that search."""
    if thread == 0:
        w.num_tasks[0] = i32(0)


def collect_tasks(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
    """Lists the agents that search, and clears the rows of the others."""
    v = ctx.array_ops.assume_nonnegative(block * search_threads + thread)
    if v < b.n * ctx.num_agents:
        e, i = ctx.array_ops.divmod_u32(v, ctx.num_agents)
        last_state = 1 if same_step and is_step and ctx.ops.load(b.final_mask, e, b1) else 0
        n = 0
        while n <= last_state:
            s = state_of(b, e, n > 0)
            if knn.searches(i, s, ctx.params(b, e)):
                number = ctx.array_ops.assume_nonnegative(ctx.array_ops.fetch_add(w.num_tasks, 0))
                w.tasks[number] = i32(2 * thread + n)
            else:
                knn.clear_row(i, s)
            n = ctx.array_ops.assume_nonnegative(n + 1)


def search_tasks(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
    """Searches for the agents of the list."""
    u, num_tasks = thread, ctx.array_ops.assume_nonnegative(w.num_tasks[0])
    while u < num_tasks:
        task = ctx.array_ops.assume_nonnegative(w.tasks[u])
        v = ctx.array_ops.assume_nonnegative(block * search_threads + (task >> 1))
        e, i = ctx.array_ops.divmod_u32(v, ctx.num_agents)
        knn.knn_by_key(i, state_of(b, e, task & 1 != 0), ctx.params(b, e), w)
        u = ctx.array_ops.assume_nonnegative(u + search_threads)


def rounds_of_block(b: Batch, block: int, is_step: bool) -> int:
    """Returns 2 if a list of cells is searched and an episode ended, whose last state is searched as well; else 1."""
    if blocks_per_env == 0:
        return 1
    e, _ = ctx.array_ops.divmod_u32(block, blocks_per_env)
    return 2 if same_step and is_step and ctx.ops.load(b.final_mask, e, b1) else 1


def state_in_round(b: Batch, block: int, round_index: int) -> EnvState:
    """Returns the state that a round searches."""
    e, _ = ctx.array_ops.divmod_u32(block, blocks_per_env)
    return state_of(b, e, round_index > 0)


def clear_cells(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
    """Empties the list."""
    clear_list(w, thread)


def measure_cells(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
    """Finds the extent of the positions."""
    measure_list(w, state_in_round(b, block, round_index), thread)


def insert_cells(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
    """Inserts all agents into the list."""
    insert_agents(w, state_in_round(b, block, round_index), thread)


def search_cells(b: Batch, w: Work, block: int, thread: int, is_step: bool, round_index: int) -> None:
    """Searches for the agents of a block."""
    e, part = ctx.array_ops.divmod_u32(block, blocks_per_env)
    s, p = state_in_round(b, block, round_index), ctx.params(b, e)
    i = ctx.array_ops.assume_nonnegative(part * search_threads + thread)
    while i < ctx.num_agents:
        write_row(i, s, p, w)
        i = ctx.array_ops.assume_nonnegative(i + blocks_per_env * search_threads)
