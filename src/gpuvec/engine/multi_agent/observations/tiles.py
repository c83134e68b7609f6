"""Rows of observations that are assembled in shared memory, in a tile, and stored from there in aligned pieces of 16 bytes.

Letters: A agents per env, D features of a row, M neighbors, r0 the first row of a tile, m its rows.
"""

from __future__ import annotations

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction, SharedArray, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.observations.features import ObservationFeatures
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import TIME

f32, u64 = np.float32, np.uint64
ROW_PER_WARP_MIN_NEIGHBORS = 64  # With so many neighbors, few threads of a warp with a row of its own are idle.
NEIGHBORS_PER_ITERATION = 4  # A thread computes the features of so many neighbors before it stores them.


def tile_elements(rows: int, num_features: int) -> int:
    """Returns the elements of a tile of so many `rows` of `num_features`, for any alignment of its first row to 16 bytes."""
    return rows * num_features + 8


def make_tile_offset(num_features: int) -> DeviceFunction:
    """Compiles `tile_offset(b, r0)`: the offset of row r0 of `num_features` from an address aligned to 16 bytes, in floats.

    The first row of a tile has the same offset in the tile.
    """

    @inline_function
    def tile_offset(b: Batch, r0: int) -> np.int64:
        return np.int64(((u64(b.obs) >> u64(2)) + u64(r0 * num_features)) & u64(3))

    return tile_offset


def make_fill(
    features: ObservationFeatures, array_ops: ArrayOps, agent_at: DeviceFunction, threads: int, rows: int
) -> DeviceFunction:
    """Compiles `fill(b, w, tile, offset, origin, m, thread)`: writes neighbors' features of m rows to `tile` from `offset` on.

    Several threads share a row: as many as there are neighbors, or whole warps if there are many neighbors, so that few threads
    are idle. Each of them looks up the agent of the row once. A thread computes the features of several neighbors before it
    stores them, so that it reads the data of the row's agent once.

    Args:
        features: the features of an observation.
        array_ops: the operations on arrays.
        agent_at: `agent_at(b, w, origin, row)` -> (i, s, t, p) of the agent of the row.
        threads: the number of threads that fill the tile.
        rows: the largest number of rows of the tile.
    """
    D, M = features.num_features, features.num_neighbors
    if min(ROW_PER_WARP_MIN_NEIGHBORS, threads) > M:
        threads_per_row = max(M, 1)
    else:
        threads_per_row = min(threads, max(32, threads // max(rows, 1) // 32 * 32))
    rows_per_iteration = threads // threads_per_row
    unrolled = range(min(NEIGHBORS_PER_ITERATION, -(-M // threads_per_row)))
    source = f"def fill(b, w, tile, offset, origin, m, thread):\n    x, first = divmod_u32(thread, {threads_per_row})\n"
    source += f"    while x < (m if thread < {rows_per_iteration * threads_per_row} else 0):\n"
    source += f"        (i, s, t, p), j = agent_at(b, w, origin, x), first\n        while j < {M}:\n"
    for n in unrolled:
        source += f"            j{n} = assume_nonnegative(j + {n * threads_per_row})\n"
        source += f"            v{n} = other_features(i, {f'min(j{n}, {M - 1})' if n else 'j0'}, s, t, p)\n"
    for n in unrolled:
        source += f"            {f'if j{n} < {M}: ' if n else ''}store_strided(tile, offset + x * {D} + j{n}, {M}, v{n})\n"
    source += f"            j = assume_nonnegative(j + {len(unrolled) * threads_per_row})\n"
    source += f"        x = assume_nonnegative(x + {rows_per_iteration})\n"
    scope = {
        "divmod_u32": array_ops.divmod_u32,
        "assume_nonnegative": array_ops.assume_nonnegative,
        "store_strided": array_ops.store_strided,
    }
    scope |= {"agent_at": agent_at, "other_features": features.other_features}
    return inline_function(generate_function("fill", source, **scope))


def make_drain(num_features: int, ops: MemoryOps, array_ops: ArrayOps, threads: int) -> DeviceFunction:
    """Compiles `drain(b, tile, r0, m, thread)`: stores rows r0 to r0 + m from `tile` to the buffer of observations.

    Args:
        num_features: D.
        ops: the operations on buffers.
        array_ops: the operations on arrays.
        threads: the number of threads that drain the tile, at least 4.
    """
    store, copy_float4, assume_nonnegative = ops.store, array_ops.copy_float4, array_ops.assume_nonnegative
    tile_offset = make_tile_offset(num_features)

    @inline_function
    def drain(b: Batch, tile: SharedArray, r0: int, m: int, thread: int) -> None:
        offset = tile_offset(b, r0)
        origin, end = r0 * num_features - offset, offset + m * num_features
        aligned_start, aligned_end = (offset + 3) & ~3, end & ~3
        q = assume_nonnegative(aligned_start + 4 * thread)
        while q < aligned_end:
            copy_float4(b.obs, origin + q, tile, q)
            q = assume_nonnegative(q + 4 * threads)
        # The floats before the first aligned piece, and after the last one.
        if thread < 4:
            if offset <= thread and thread < min(aligned_start, end):
                store(b.obs, origin + thread, tile[thread], f32)
            if offset <= aligned_end + thread and aligned_end + thread < end:
                store(b.obs, origin + aligned_end + thread, tile[aligned_end + thread], f32)

    return drain


def fill_segments(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures) -> list[Segment]:
    """Compiles the segments that assemble the rows of all agents of a block in `w.tile`.

    Args:
        ctx: the context.
        access: access to the state.
        features: the features of an observation.
    """
    A, D, num_self_features = ctx.num_agents, features.num_features, features.num_self_features
    compute_self_features = features.compute_self_features
    divmod_u32, store_strided = ctx.array_ops.divmod_u32, ctx.array_ops.store_strided
    state, params, episode_time = access.state, ctx.params, features.episode_time
    tile_offset = make_tile_offset(D)

    @inline_function
    def agent_at(b: Batch, w: Work, e0: int, u: int) -> tuple[object, ...]:
        k, i = divmod_u32(u, A)
        return i, state(b, w, e0 + k, k), episode_time(w.status[k, TIME]), params(b, e0 + k)

    fill = make_fill(features, ctx.array_ops, agent_at, ctx.launch.threads_per_block, ctx.launch.envs_per_block * A)

    @inline_function
    def fill_neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        fill(b, w, w.tile, tile_offset(b, e0 * A), e0, m * A, thread)

    @inline_function
    def fill_self_features(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        end = tile_offset(b, (e - k) * A) + (k * A + i + 1) * D
        store_strided(w.tile, end - num_self_features, 1, compute_self_features(b, w, e, k, i))

    neighbors = [Segment(BLOCK, fill_neighbors, barrier=False)] if features.num_neighbors else []
    return [*neighbors, Segment(AGENTS, fill_self_features)]


def drain_segment(ctx: MultiAgentContext) -> Segment:
    """Compiles the segment that stores the rows of a block from `w.tile`, for a context `ctx`."""
    A, drain_rows = ctx.num_agents, make_drain(ctx.schema.num_features, ctx.ops, ctx.array_ops, ctx.launch.threads_per_block)

    @inline_function
    def drain(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        drain_rows(b, w.tile, e0 * A, m * A, thread)

    return Segment(BLOCK, drain, barrier=False)


def self_rows_segment(ctx: MultiAgentContext, compute_self_features: DeviceFunction) -> Segment:
    """Compiles the segment that stores rows with own features alone. `w.tile` has a row for each thread.

    If they were stored from registers, each piece of a row would write a part of a sector of memory. The cache combines such
    writes only if they follow each other soon (design/0011).

    Args:
        ctx: the context.
        compute_self_features: `compute_self_features` of `ObservationFeatures`.
    """
    A, D, threads = ctx.num_agents, ctx.schema.num_features, ctx.launch.threads_per_block
    store_row_streaming, store_strided = ctx.ops.store_row_streaming, ctx.array_ops.store_strided
    divmod_u32, assume_nonnegative = ctx.array_ops.divmod_u32, ctx.array_ops.assume_nonnegative
    width = next(k for k in (4, 2, 1) if D % k == 0)  # All rows are aligned to so many floats.
    elements = "".join(f"tile[{width} * q + {k}], " for k in range(width))
    piece = inline_function(generate_function("piece", f"def piece(tile, q):\n    return ({elements})\n"))

    @inline_function
    def fill(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        _, x = divmod_u32(i, threads)
        store_strided(w.tile, x * D, 1, compute_self_features(b, w, e, k, i))

    @inline_function
    def drain(b: Batch, w: Work, e0: int, u: int, thread: int, clock: int) -> None:
        first, end, q = (e0 * A + u) * (D // width), min(threads, assume_nonnegative(A - u)) * (D // width), thread
        while q < end:
            store_row_streaming(b.obs, first + q, piece(w.tile, q))
            q = assume_nonnegative(q + threads)

    return Segment(AGENTS, fill, barrier=False, after_round=drain)
