"""Segments of the first kernel that store features directly to global memory.

Letters: A agents per env, D features, M neighbors, e an env, e0 the first of the block, k an env's index in it, i an agent.
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
    """The compiled functions that store parts of rows to the buffer `out`."""

    # store_neighbor(b, w, out, e0, x, state_index): the features of neighbor x of the block, whose states begin at that index
    # of the work
    store_neighbor: DeviceFunction
    # store_neighbors(b, w, out, e0, first, end, thread): the features of the neighbors of agents `first` to `end` of the block
    store_neighbors: DeviceFunction
    # store_self_features(b, w, out, e, state_index, i): agent i's own features, from the state at that index of the work
    store_self_features: DeviceFunction


def make_direct_stores(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures) -> DirectStores:
    """Compiles the functions for one context.

    Args:
        ctx: the context.
        access: access to the state.
        features: the features of an observation.
    """
    A, store_features, compute_self_features = ctx.num_agents, features.store_self_features, features.compute_self_features
    store_neighbor = _make_store_neighbor(ctx, access, features)
    one_thread = ctx.launch.threads_per_block == 1
    store_neighbors = (
        _make_store_neighbors_of_env(ctx, access, features)
        if one_thread
        else _make_store_neighbors(ctx, features, store_neighbor)
    )

    @inline_function
    def store_self_features(b: Batch, w: Work, out: int, e: int, state_index: int, i: int) -> None:
        store_features(out, e * A + i, compute_self_features(b, w, e, state_index, i))

    return DirectStores(store_neighbor, store_neighbors, store_self_features)


def _make_store_neighbor(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures) -> DeviceFunction:
    """`store_neighbor` as in `DirectStores`."""
    A, D, M = ctx.num_agents, features.num_features, features.num_neighbors
    divmod_u32, scatter_strided = ctx.array_ops.divmod_u32, ctx.array_ops.scatter_strided
    params, state = ctx.params, access.state
    other_features, episode_time = features.other_features, features.episode_time

    @inline_function
    def store_neighbor(b: Batch, w: Work, out: int, e0: int, x: int, state_index: int) -> None:
        v, j = divmod_u32(x, M)
        k, i = divmod_u32(v, A)
        s, t = state(b, w, e0 + k, state_index + k), episode_time(w.status[state_index + k, TIME])
        scatter_strided(out, e0 * (A * D) + (v * D + j), M, other_features(i, j, s, t, params(b, e0 + k)))

    return store_neighbor


def _make_store_neighbors(
    ctx: MultiAgentContext, features: ObservationFeatures, store_neighbor: DeviceFunction
) -> DeviceFunction:
    """`store_neighbors` for a block of several threads: each has neighbors with a stride."""
    M, threads, assume_nonnegative = features.num_neighbors, ctx.launch.threads_per_block, ctx.array_ops.assume_nonnegative

    @inline_function
    def store_neighbors(b: Batch, w: Work, out: int, e0: int, first: int, end: int, thread: int) -> None:
        x = first * M + thread
        while x < end * M:
            store_neighbor(b, w, out, e0, x, 0)
            x = assume_nonnegative(x + threads)

    return store_neighbors


def _make_store_neighbors_of_env(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures) -> DeviceFunction:
    """`store_neighbors` for a block of one thread and one env."""
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
    """Compiles the segments that store the observations of all envs.

    Args:
        ctx: the context.
        features: the features of an observation.
        stores: the functions that store them.
    """
    A, store_neighbors, store_self_features = ctx.num_agents, stores.store_neighbors, stores.store_self_features

    @inline_function
    def neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        store_neighbors(b, w, b.obs, e0, 0, m * A, thread)

    @inline_function
    def self_features(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        store_self_features(b, w, b.obs, e, k, i)

    return _with_neighbors(features, neighbors, Segment(AGENTS, self_features, barrier=False))


def final_segments(ctx: MultiAgentContext, features: ObservationFeatures, stores: DirectStores) -> list[Segment]:
    """Compiles the segments that store the final observations of envs whose episode ended.

    Args:
        ctx: the context.
        features: the features of an observation.
        stores: the functions that store them.
    """
    A, store_neighbors, store_self_features = ctx.num_agents, stores.store_neighbors, stores.store_self_features

    @inline_function
    def final_neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        for k in range(m):
            if w.status[k, HAS_ENDED]:
                store_neighbors(b, w, b.final_obs, e0, k * A, (k + 1) * A, thread)

    @inline_function
    def final_self_features(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if w.status[k, HAS_ENDED]:
            store_self_features(b, w, b.final_obs, e, k, i)

    return _with_neighbors(features, final_neighbors, Segment(AGENTS, final_self_features))


def staged_final_segments(ctx: MultiAgentContext, features: ObservationFeatures, stores: DirectStores) -> list[Segment]:
    """Compiles the segments that store final observations from copies of the states, while the next episodes begin.

    Args:
        ctx: the context.
        features: the features of an observation.
        stores: the functions that store them.
    """
    A, M, first_copy, threads = ctx.num_agents, features.num_neighbors, ctx.num_final_copies, ctx.launch.threads_per_block
    store_neighbor, store_self_features = stores.store_neighbor, stores.store_self_features
    divmod_u32, assume_nonnegative = ctx.array_ops.divmod_u32, ctx.array_ops.assume_nonnegative
    # The first warp starts the next episodes.
    first_thread = 32 if threads > 32 else 0

    @inline_function
    def final_neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        x = thread - first_thread
        while 0 <= x < m * (A * M):
            if w.status[divmod_u32(x, A * M)[0], HAS_ENDED]:
                store_neighbor(b, w, b.final_obs, e0, x, first_copy)
            x = assume_nonnegative(x + (threads - first_thread))

    @inline_function
    def final_self_features(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        x = thread - first_thread
        while 0 <= x < m * A:
            k, i = divmod_u32(x, A)
            if w.status[k, HAS_ENDED]:
                store_self_features(b, w, b.final_obs, assume_nonnegative(e0 + k), assume_nonnegative(first_copy + k), i)
            x = assume_nonnegative(x + (threads - first_thread))

    return _with_neighbors(features, final_neighbors, Segment(BLOCK, final_self_features))


def _with_neighbors(features: ObservationFeatures, neighbors: DeviceFunction, self_segment: Segment) -> list[Segment]:
    """The segment of neighbors' features, if there are any, and then that of own features."""
    return [Segment(BLOCK, neighbors, barrier=False), self_segment] if features.num_neighbors else [self_segment]
