"""The functions of the third kernel, which writes observations after the step, from the states in global memory.

Letters: A agents per env, D features, M neighbors, e an env, i an agent, r its row, r0 the first of m rows in a tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, SharedArray, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.observations.features import ObservationFeatures
from gpuvec.engine.multi_agent.observations.items import RowItems
from gpuvec.engine.multi_agent.observations.tiles import make_drain, make_fill, make_tile_offset
from gpuvec.engine.multi_agent.state_access import StateAccess

i32, i64, u32, u64, b1 = np.int32, np.int64, np.uint32, np.uint64, np.bool_


class TileFunctions(NamedTuple):
    """The functions that assemble rows in shared memory, in which each sector of memory is then written once."""

    fill: DeviceFunction  # fill(b, tile, r0, m, thread): writes rows r0 to r0 + m to shared memory
    drain: DeviceFunction  # drain(b, tile, r0, m, thread, is_step): stores them from there, and final rows directly


class RowKernel(NamedTuple):
    """The compiled functions of the kernel; `is_step` is false in a reset, in which no episode ends.

    An item is the features of one neighbor in a row; the last item of a row includes the agent's own features.
    """

    store_item: DeviceFunction  # store_item(b, x, is_step): stores item x of all rows directly
    tile: TileFunctions | None  # None for images, blocks and roles, which are always stored directly
    items_per_env: int


def make_row_kernel(
    ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures, row_items: list[RowItems]
) -> RowKernel:
    """Compiles the functions for one context.

    Args:
        ctx: the context.
        access: access to the state.
        features: the features of an observation.
        row_items: the items of images, of rows with blocks, or of the rows of each role; empty for other rows.
    """
    items = max(features.num_neighbors, 1)
    observation_time = _make_observation_time(ctx, features)
    if row_items:
        return _make_item_kernel(ctx, access, row_items, observation_time)
    store_final_item = _make_store_final_item(ctx, access, features, items)
    return RowKernel(
        store_item=_make_store_item(ctx, access, features, observation_time, store_final_item, items),
        tile=TileFunctions(
            fill=_make_fill_rows(ctx, access, features, observation_time),
            drain=_make_drain_rows(ctx, features, store_final_item, items),
        ),
        items_per_env=ctx.num_agents * items,
    )


def _make_item_kernel(
    ctx: MultiAgentContext, access: StateAccess, row_items: list[RowItems], observation_time: DeviceFunction
) -> RowKernel:
    """The kernel for images, blocks and roles, which has no rows in shared memory."""
    stores = [_make_store_row_item(access, part, observation_time) for part in row_items]
    items_per_env = sum(part.items_per_env for part in row_items)

    if len(stores) == 1:
        return RowKernel(stores[0], None, items_per_env)
    # There may be more than 2**32 items.
    source = f"def store_item(b, x, is_step):\n    e = i64(u64(x) // u64({items_per_env}))\n    y = x - e * {items_per_env}\n"
    first, scope = 0, {f"store_{n}": store for n, store in enumerate(stores)}
    for n, part in enumerate(row_items):
        source += f"    if {first} <= y < {first + part.items_per_env}:\n"
        source += f"        store_{n}(b, e * {part.items_per_env} + y - {first}, is_step)\n"
        first += part.items_per_env
    store_item = inline_function(generate_function("store_item", source, **scope, i64=i64, u64=u64))
    return RowKernel(store_item, None, items_per_env)


def _make_store_row_item(access: StateAccess, part: RowItems, observation_time: DeviceFunction) -> DeviceFunction:
    """`store_item` as in `RowKernel`, in which x counts the items of agents with equal spaces."""
    ctx, (items, store) = part.ctx, part.items
    A, load, params, same_step = ctx.num_agents, ctx.ops.load, ctx.params, ctx.same_step
    divmod_u32, from_global, load_final = ctx.array_ops.divmod_u32, access.from_global, access.load_final
    episode_time, suffix = part.features.episode_time, ctx.schema.suffix
    obs_of, final_obs_of = (
        inline_function(generate_function("output", f"def output(b):\n    return b.{name}{suffix}\n"))
        for name in ("obs", "final_obs" if same_step else "obs")
    )

    @inline_function
    def store_item(b: Batch, x: int, is_step: bool) -> None:
        r = i64(u64(x) // u64(items))  # There may be more than 2**32 items.
        j = x - r * items
        e, i = divmod_u32(r, A)
        store(obs_of(b), r, j, i, from_global(b, e), observation_time(b, e), params(b, e))
        if same_step and is_step and load(b.final_mask, e, b1):
            t = episode_time(load(b.last_time, e, i32))
            store(final_obs_of(b), r, j, i, load_final(b, e), t, params(b, e))

    return store_item


def _make_observation_time(ctx: MultiAgentContext, features: ObservationFeatures) -> DeviceFunction:
    """`observation_time(b, e)`: the time of env e after this reset or step. The clocks of all blocks have been advanced."""
    load, episode_time = ctx.ops.load, features.episode_time

    @inline_function
    def observation_time(b: Batch, e: int) -> object:
        clock, start = load(b.clock, 0, u32), load(b.start, e, u32)
        return episode_time(load(b.last_time, e, i32) if start == u32(clock + u32(1)) else i32(clock - start))

    return observation_time


def _make_store_final_item(
    ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures, items: int
) -> DeviceFunction:
    """`store_final_item(b, e, i, j)`: stores item j of the final observation of agent i directly."""
    A, D, M, load, params = ctx.num_agents, features.num_features, features.num_neighbors, ctx.ops.load, ctx.params
    scatter_strided, load_final, store_self_features = (
        ctx.array_ops.scatter_strided,
        access.load_final,
        features.store_self_features,
    )
    self_features, other_features, episode_time = features.self_features, features.other_features, features.episode_time

    @inline_function
    def store_final_item(b: Batch, e: int, i: int, j: int) -> None:
        r, t = e * A + i, episode_time(load(b.last_time, e, i32))
        if M > 0:
            scatter_strided(b.final_obs, r * D + j, M, other_features(i, j, load_final(b, e), t, params(b, e)))
        if j == items - 1:
            store_self_features(b.final_obs, r, self_features(i, load_final(b, e), t, params(b, e)))

    return store_final_item


def _make_store_item(
    ctx: MultiAgentContext,
    access: StateAccess,
    features: ObservationFeatures,
    observation_time: DeviceFunction,
    store_final_item: DeviceFunction,
    items: int,
) -> DeviceFunction:
    """`store_item` as in `RowKernel`."""
    A, D, M, load, params, same_step = (
        ctx.num_agents, features.num_features, features.num_neighbors, ctx.ops.load, ctx.params, ctx.same_step,
    )  # fmt: skip
    divmod_u32, scatter_strided, from_global = ctx.array_ops.divmod_u32, ctx.array_ops.scatter_strided, access.from_global
    self_features, other_features, store_self_features = (
        features.self_features,
        features.other_features,
        features.store_self_features,
    )

    @inline_function
    def store_item(b: Batch, x: int, is_step: bool) -> None:
        r = i64(u64(x) // u64(items))  # There may be more than 2**32 items.
        j = x - r * items
        e, i = divmod_u32(r, A)
        if M > 0:
            scatter_strided(b.obs, r * D + j, M, other_features(i, j, from_global(b, e), observation_time(b, e), params(b, e)))
        if j == items - 1:
            store_self_features(b.obs, r, self_features(i, from_global(b, e), observation_time(b, e), params(b, e)))
        if same_step and is_step and load(b.final_mask, e, b1):
            store_final_item(b, e, i, j)

    return store_item


def _make_fill_rows(
    ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures, observation_time: DeviceFunction
) -> DeviceFunction:
    """`fill` as in `RowKernel`."""
    A, D, M, num_self_features = ctx.num_agents, features.num_features, features.num_neighbors, features.num_self_features
    divmod_u32, store_strided = ctx.array_ops.divmod_u32, ctx.array_ops.store_strided
    params, threads = ctx.params, ctx.launch.threads_per_row_block
    from_global, self_features, tile_offset = access.from_global, features.self_features, make_tile_offset(D)

    @inline_function
    def agent_at(b: Batch, w: Work, r0: int, x: int) -> tuple[object, ...]:
        e, i = divmod_u32(r0 + x, A)
        return i, from_global(b, e), observation_time(b, e), params(b, e)

    fill_neighbors = make_fill(features, ctx.array_ops, agent_at, threads, ctx.launch.tile_rows)

    @inline_function
    def fill(b: Batch, tile: SharedArray, r0: int, m: int, thread: int) -> None:
        offset, x = tile_offset(b, r0), thread
        if M > 0:
            fill_neighbors(b, 0, tile, offset, r0, m, thread)
        while x < m:
            i, s, t, p = agent_at(b, 0, r0, x)
            store_strided(tile, offset + (x + 1) * D - num_self_features, 1, self_features(i, s, t, p))
            x += threads

    return fill


def _make_drain_rows(
    ctx: MultiAgentContext, features: ObservationFeatures, store_final_item: DeviceFunction, items: int
) -> DeviceFunction:
    """`drain` as in `RowKernel`."""
    A, threads, load, divmod_u32 = ctx.num_agents, ctx.launch.threads_per_row_block, ctx.ops.load, ctx.array_ops.divmod_u32
    assume_nonnegative, same_step = ctx.array_ops.assume_nonnegative, ctx.same_step
    drain_rows = make_drain(features.num_features, ctx.ops, ctx.array_ops, threads)

    @inline_function
    def drain(b: Batch, tile: SharedArray, r0: int, m: int, thread: int, is_step: bool) -> None:
        drain_rows(b, tile, r0, m, thread)
        if same_step and is_step:
            e, _ = divmod_u32(r0, A)
            while e * A < r0 + m:
                if load(b.final_mask, e, b1):
                    first, end, x = max(r0, e * A), min(r0 + m, (e + 1) * A), thread
                    while x < (end - first) * items:
                        r, j = divmod_u32(x, items)
                        store_final_item(b, e, assume_nonnegative(first - e * A + r), j)
                        x += threads
                e = assume_nonnegative(e + 1)

    return drain
