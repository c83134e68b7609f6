"""Segments of the kernel that runs the step, which store features directly at their places.

Letters: A agents per env, M neighbors, e an env, e0 the first of the block, k an env's place in the block, i an agent.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.observations.features import ObservationFeatures
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import HAS_ENDED, TIME


class DirectStores(NamedTuple):
    """The functions that store parts of rows directly; states are in the work from `place` on."""

    store_neighbor: DeviceFunction  # store_neighbor(b, w, out, e0, x, place): the x-th neighbor's features of the block at e0
    store_neighbors: DeviceFunction  # store_neighbors(b, w, out, e0, first, end, thread): of agents first to end of the block
    store_own: DeviceFunction  # store_own(b, w, out, e, place, i): agent i's own features


def make_direct_stores(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures) -> DirectStores:
    """The functions for one context.

    Args:
        ctx: the context.
        access: the functions for the state.
        features: the functions for the features.
    """
    A, store_own_features, own_features = ctx.num_agents, features.store_own, features.own_features
    store_neighbor = _store_neighbor(ctx, access, features)
    one_thread = ctx.launch.threads_per_block == 1
    store_neighbors = (
        _store_neighbors_of_env(ctx, access, features) if one_thread else _store_neighbors(ctx, features, store_neighbor)
    )

    @inline_function
    def store_own(b: Batch, w: Work, out: int, e: int, place: int, i: int) -> None:
        store_own_features(out, e * A + i, own_features(b, w, e, place, i))

    return DirectStores(store_neighbor, store_neighbors, store_own)


def _store_neighbor(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures) -> DeviceFunction:
    A, D, M = ctx.num_agents, features.num_features, features.num_neighbors
    divmod_u32, scatter_strided = ctx.array_ops.divmod_u32, ctx.array_ops.scatter_strided
    params, state = ctx.params, access.state
    other_features, episode_time = features.other_features, features.episode_time

    @inline_function
    def store_neighbor(b: Batch, w: Work, out: int, e0: int, x: int, place: int) -> None:
        v, j = divmod_u32(x, M)
        k, i = divmod_u32(v, A)
        s, t = state(b, w, e0 + k, place + k), episode_time(w.status[place + k, TIME])
        scatter_strided(out, e0 * (A * D) + (v * D + j), M, other_features(i, j, s, t, params(b, e0 + k)))

    return store_neighbor


def _store_neighbors(ctx: MultiAgentContext, features: ObservationFeatures, store_neighbor: DeviceFunction) -> DeviceFunction:
    """The function for a block of several threads, each of which takes neighbors with a stride."""
    M, threads, assume_nonnegative = features.num_neighbors, ctx.launch.threads_per_block, ctx.array_ops.assume_nonnegative

    @inline_function
    def store_neighbors(b: Batch, w: Work, out: int, e0: int, first: int, end: int, thread: int) -> None:
        x = first * M + thread
        while x < end * M:
            store_neighbor(b, w, out, e0, x, 0)
            x = assume_nonnegative(x + threads)

    return store_neighbors


def _store_neighbors_of_env(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures) -> DeviceFunction:
    """The function for a block of one thread, which has one env."""
    A, D, M = ctx.num_agents, features.num_features, features.num_neighbors
    scatter_strided, params, state = ctx.array_ops.scatter_strided, ctx.params, access.state
    other_features, episode_time = features.other_features, features.episode_time

    @inline_function
    def store_neighbors(b: Batch, w: Work, out: int, e0: int, first: int, end: int, thread: int) -> None:
        s, t, p = state(b, w, e0, 0), episode_time(w.status[0, TIME]), params(b, e0)
        for i in range(A):
            for j in range(M):
                scatter_strided(out, (e0 * A + i) * D + j, M, other_features(i, j, s, t, p))

    return store_neighbors


def direct_segments(ctx: MultiAgentContext, features: ObservationFeatures, stores: DirectStores) -> list[Segment]:
    """The segments that store the observations of all envs.

    Args:
        ctx: the context.
        features: the functions for the features.
        stores: the functions that store them.
    """
    A, store_neighbors, store_own = ctx.num_agents, stores.store_neighbors, stores.store_own

    @inline_function
    def neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        store_neighbors(b, w, b.obs, e0, 0, m * A, thread)

    @inline_function
    def own(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        store_own(b, w, b.obs, e, k, i)

    return _with_neighbors(features, neighbors, Segment(AGENTS, own, barrier=False))


def final_segments(ctx: MultiAgentContext, features: ObservationFeatures, stores: DirectStores) -> list[Segment]:
    """The segments that store the final observations of envs whose episode ended.

    Args:
        ctx: the context.
        features: the functions for the features.
        stores: the functions that store them.
    """
    A, store_neighbors, store_own = ctx.num_agents, stores.store_neighbors, stores.store_own

    @inline_function
    def final_neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        for k in range(m):
            if w.status[k, HAS_ENDED]:
                store_neighbors(b, w, b.final_obs, e0, k * A, (k + 1) * A, thread)

    @inline_function
    def final_own(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if w.status[k, HAS_ENDED]:
            store_own(b, w, b.final_obs, e, k, i)

    return _with_neighbors(features, final_neighbors, Segment(AGENTS, final_own))


def staged_final_segments(ctx: MultiAgentContext, features: ObservationFeatures, stores: DirectStores) -> list[Segment]:
    """The segments that store final observations from copies of the states, while the next episodes begin.

    Args:
        ctx: the context.
        features: the functions for the features.
        stores: the functions that store them.
    """
    A, M, first_copy, threads = ctx.num_agents, features.num_neighbors, ctx.final_places, ctx.launch.threads_per_block
    store_neighbor, store_own = stores.store_neighbor, stores.store_own
    divmod_u32, assume_nonnegative = ctx.array_ops.divmod_u32, ctx.array_ops.assume_nonnegative
    busy = 32 if threads > 32 else 0  # the first warp begins the next episodes

    @inline_function
    def final_neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        x = thread - busy
        while 0 <= x < m * (A * M):
            if w.status[divmod_u32(x, A * M)[0], HAS_ENDED]:
                store_neighbor(b, w, b.final_obs, e0, x, first_copy)
            x = assume_nonnegative(x + (threads - busy))

    @inline_function
    def final_own(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        x = thread - busy
        while 0 <= x < m * A:
            k, i = divmod_u32(x, A)
            if w.status[k, HAS_ENDED]:
                store_own(b, w, b.final_obs, assume_nonnegative(e0 + k), assume_nonnegative(first_copy + k), i)
            x = assume_nonnegative(x + (threads - busy))

    return _with_neighbors(features, final_neighbors, Segment(BLOCK, final_own))


def _with_neighbors(features: ObservationFeatures, neighbors: DeviceFunction, own: Segment) -> list[Segment]:
    """The segment of own features after that of neighbors' features, if there are any."""
    return [Segment(BLOCK, neighbors, barrier=False), own] if features.num_neighbors else [own]
