"""The observations of many agents: items that threads store directly, or rows assembled in shared memory (design/0011).

A row has the first feature of all M neighbors, the second of all M, and so on, and then the agent's own features. The features
of one neighbor are M elements apart, so on a GPU rows are assembled in shared memory and stored in aligned pieces of 16 bytes.

Letters: A agents per env, D features of a row, M neighbors, e an env, e0 the first of the block, k an env's index in it, i an
agent, j a neighbor or an item of a row, r a row of the buffer, r0 the first of m rows in a tile.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64, u32, u64
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Features, SharedArray, Work
from gpuvec.engine.layout.declared_schema import block_widths, feature_widths
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_env
from gpuvec.engine.multi_agent.phases import make_index
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment, envs_per_round
from gpuvec.engine.multi_agent.state_access import HAS_ENDED, TIME, StateAccess, WorkArrays
from gpuvec.engine.multi_agent.step import EpisodeStatus
from gpuvec.observations import Time


class ObservationFeatures(NamedTuple):
    """The sizes of the parts of a row, and the compiled functions for them."""

    num_features: int  # D
    num_neighbors: int  # M; 0 if a neighbor has no features
    num_self_features: int  # number of an agent's own features, at the end of a row
    block_widths: tuple[int, ...]  # the number of features of an element in each block
    episode_time: DeviceFunction  # episode_time(t) -> Time
    self_features: DeviceFunction  # the author's self_features(i, s, t, p)
    other_features: DeviceFunction  # the author's other_features(i, j, s, t, p)
    # compute_self_features(b, w, e, state_index, i) -> agent i's own features, from the state at that index of the work
    compute_self_features: DeviceFunction
    # store_self_features(out, r, values): stores own features at the end of row r of buffer `out`
    store_self_features: DeviceFunction


def make_observation_features(ctx: MultiAgentContext, access: StateAccess) -> ObservationFeatures:
    """Compiles the features for a context `ctx`, whose state `access` reads."""
    other_width, num_self_features = feature_widths(ctx.env, ctx.schema)
    limit, params, state = ctx.step_limit, ctx.params, access.state
    self_features = _self_features(ctx.schema)

    @inline_function
    def episode_time(t: int) -> Time:
        return Time(i32(t), limit)

    @inline_function
    def compute_self_features(b: Batch, w: Work, e: int, state_index: int, i: int) -> Any:
        return self_features(i, state(b, w, e, state_index), episode_time(w.status[state_index, TIME]), params(b, e))

    return ObservationFeatures(
        num_features=ctx.schema.num_features,
        num_neighbors=ctx.schema.observation.max_neighbors if other_width else 0,
        num_self_features=num_self_features,
        block_widths=block_widths(ctx.env, ctx.schema),
        episode_time=episode_time,
        self_features=self_features,
        other_features=_other_features(ctx.schema),
        compute_self_features=compute_self_features,
        store_self_features=_make_store_self_features(ctx, num_self_features),
    )


def _make_store_self_features(ctx: MultiAgentContext, num_self_features: int) -> DeviceFunction:
    """`store_self_features` as in `ObservationFeatures`. A row without other features is stored with the widest stores."""
    D, is_whole_row, like = ctx.schema.num_features, ctx.schema.has_only_self_features, row_of(f32, num_self_features)
    scatter_strided, store_row_streaming = ctx.array_ops.scatter_strided, ctx.ops.store_row_streaming
    to_floats = ctx.ops.to_floats

    @inline_function
    def store_self_features(out: int, r: int, values: Features) -> None:
        if not is_whole_row:
            scatter_strided(out, (r + 1) * D - num_self_features, 1, values)
        else:
            store_row_streaming(out, r, to_floats(values, like))

    return store_self_features


def _self_features(schema: MultiAgentSchema) -> DeviceFunction:
    """The author's function for an agent itself, or one that is never called if observations are images."""
    if schema.observation.self_features is not None:
        return device_function(schema.observation.self_features)

    @inline_function
    def no_features(i: int, s: EnvState, t: Time, p: EnvParams) -> Features:
        return ()

    return no_features


def _other_features(schema: MultiAgentSchema) -> DeviceFunction:
    """The author's function for a neighbor, or one that is never called if there is none."""
    if schema.observation.other_features is not None:
        return device_function(schema.observation.other_features)

    @inline_function
    def no_features(i: int, j: int, s: EnvState, t: Time, p: EnvParams) -> Features:
        return (f32(0.0),)

    return no_features


# Observations whose threads each store an item: a group of pixels of an image, or the features of an element of a set.
#
# Letters: A agents per env, e an env, k its index in the block, i an agent, j an item, r a row.


class ItemStore(NamedTuple):
    """The compiled function that stores an item of a row."""

    items_per_row: int
    store: DeviceFunction  # store(out, r, j, i, s, t, p): item j of agent i, in row r of the buffer `out`


class RowItems(NamedTuple):
    """The items of whole rows of agents with equal spaces."""

    ctx: MultiAgentContext  # that of all agents, or of a role
    features: ObservationFeatures
    items: ItemStore

    @property
    def items_per_env(self) -> int:
        """The number of items of all of these agents of an env."""
        return self.ctx.num_agents * self.items.items_per_row


def item_segment(
    ctx: MultiAgentContext,
    access: StateAccess,
    features: ObservationFeatures,
    items: ItemStore,
    condition: DeviceFunction | None = None,
    output_name: str = "obs",
) -> Segment:
    """Compiles the segment that stores the items of all agents, or of the final observations of envs whose episode ended.

    Args:
        ctx: the context of all agents, or of one role.
        access: access to the state.
        features: has the time of an episode.
        items: the function that stores an item.
        condition: `condition(w, k)` -> whether the episode of env k ended, for final observations; None for all others.
        output_name: the name of the output, without the prefix of final observations.
    """
    name = output_name if condition is None else f"final_{output_name}"
    store_item, is_stored = make_store_item(ctx, features, items, access, name), condition or every_env

    @inline_function
    def store_item_if(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
        if is_stored(w, k):
            store_item(b, w, e, k, x)

    return Segment(AGENTS, store_item_if, barrier=False, num_elements=ctx.num_agents * items.items_per_row)


def make_store_item(
    ctx: MultiAgentContext, features: ObservationFeatures, items: ItemStore, access: StateAccess, output_name: str
) -> DeviceFunction:
    """Compiles `store_item(b, w, e, k, x)`, which stores item x of env e, number k of its block.

    Args:
        ctx: the context of all agents, or of one role.
        features: has the time of an episode.
        items: the function that stores an item.
        access: access to the state.
        output_name: the name of the output.
    """
    A, (items_per_row, store) = ctx.num_agents, items
    state, params, episode_time, divmod_u32 = access.state, ctx.params, features.episode_time, ctx.array_ops.divmod_u32
    output = inline_function(generate_function("output", f"def output(b):\n    return b.{output_name}{ctx.schema.suffix}\n"))

    @inline_function
    def store_item(b: Batch, w: Work, e: int, k: int, x: int) -> None:
        i, j = (0, x) if A == 1 else divmod_u32(x, items_per_row)
        store(output(b), e * A + i, j, i, state(b, w, e, k), episode_time(w.status[k, TIME]), params(b, e))

    return store_item


def element_segment(ctx: MultiAgentContext, access: StateAccess, features: ObservationFeatures, block: ItemStore) -> Segment:
    """Compiles the segment in which a thread stores the features of one element of a set for all agents.

    The index of the element, and values that do not depend on the agent, are computed once.

    Args:
        ctx: the context of all agents.
        access: access to the state.
        features: has the time of an episode.
        block: the function that stores the features of an element.
    """
    A, store, state, params, episode_time = ctx.num_agents, block.store, access.state, ctx.params, features.episode_time
    assume_nonnegative, add_nonnegative = ctx.array_ops.assume_nonnegative, ctx.array_ops.add_nonnegative

    @inline_function
    def store_element(b: Batch, w: Work, e: int, k: int, n: int, clock: int) -> None:
        s, t, p = state(b, w, e, k), episode_time(w.status[k, TIME]), params(b, e)
        i = assume_nonnegative(0)
        while i < A:
            store(b.obs, assume_nonnegative(e * A + i), n, i, s, t, p)
            i = add_nonnegative(i, 1)

    return Segment(AGENTS, store_element, barrier=False, num_elements=block.items_per_row)


# The blocks of an observation: features of each element of an index set, between those of the neighbors and the agent's own.
#
# A thread computes the features of one element for one agent. Consecutive threads have consecutive elements, so the stores of
# each feature are coalesced.
#
# Letters: D features of a row, M neighbors, N elements of a set, i an agent, j an item of a row, n an element, r a row.


def make_block_stores(ctx: MultiAgentContext, features: ObservationFeatures) -> list[ItemStore]:
    """Compiles the function of each block.

    Args:
        ctx: the context.
        features: the features of an observation, with the width of each block.
    """
    blocks, stores = ctx.schema.observation.blocks, []
    sizes = [math.prod(ctx.schema.sets[block.over]) for block in blocks]
    offset = features.num_features - features.num_self_features
    offset -= sum(width * size for width, size in zip(features.block_widths, sizes, strict=True))
    for block, width, size in zip(blocks, features.block_widths, sizes, strict=True):
        stores.append(ItemStore(size, _make_block_store(ctx, block.over, block.function, features.num_features, offset)))
        offset += width * size
    return stores


def _make_block_store(
    ctx: MultiAgentContext, index_set: str, function: DeviceFunction, num_features: int, offset: int
) -> DeviceFunction:
    """`store` as in `ItemStore`, of element n, for a block that begins at `offset` of a row."""
    author_function, scatter_strided = device_function(function), ctx.array_ops.scatter_strided
    index = make_index(ctx, index_set)
    num_elements = math.prod(ctx.schema.sets[index_set])

    @inline_function
    def store(out: int, r: int, n: int, i: int, s: EnvState, t: Time, p: EnvParams) -> None:
        scatter_strided(out, r * num_features + offset + n, num_elements, author_function(i, index(n), s, t, p))

    return store


def make_item_of_row(ctx: MultiAgentContext, features: ObservationFeatures, blocks: list[ItemStore]) -> ItemStore:
    """Compiles the function that stores any item of a row, for a kernel whose threads have one each.

    The items are the neighbors, the last of them with the agent's own features, and then the elements of each block.

    Args:
        ctx: the context.
        features: the features of an observation.
        blocks: the functions that store the blocks.
    """
    D, M, first = features.num_features, features.num_neighbors, max(features.num_neighbors, 1)
    source = f"def store_item(out, r, j, i, s, t, p):\n    if j < {first}:\n"
    source += f"        scatter_strided(out, r * {D} + j, {M}, other_features(i, j, s, t, p))\n" if M else ""
    source += f"        if j == {first - 1}:\n            store_self_features(out, r, self_features(i, s, t, p))\n"
    for number, block in enumerate(blocks):
        source += f"    elif j < {first + block.items_per_row}:\n        store_{number}(out, r, j - {first}, i, s, t, p)\n"
        first += block.items_per_row
    scope = {"scatter_strided": ctx.array_ops.scatter_strided, "store_self_features": features.store_self_features}
    scope |= {"self_features": features.self_features, "other_features": features.other_features}
    scope |= {f"store_{number}": block.store for number, block in enumerate(blocks)}
    return ItemStore(first, inline_function(generate_function("store_item", source, **scope)))


# Observations that are images, (C, H, W): a thread computes all channels of a few neighboring pixels and stores them together.
#
# Consecutive threads have consecutive pixels, so their stores are coalesced. Two or four pixels of uint8 are stored as one
# word.
#
# Letters: C channels, i an agent, q a group of pixels, r an image of the buffer.


WORDS = {4: np.uint32, 2: np.uint16}  # {pixels of uint8 in a word: its type}


def make_image_store(ctx: MultiAgentContext) -> ItemStore:
    """Compiles the function that stores a group of pixels, for a context `ctx`."""
    layout = ctx.schema.obs
    channels, height, width = layout.shape
    group, num_groups = layout.pixels_per_word, height * width // layout.pixels_per_word
    pixel: Any = ctx.schema.observation.pixel
    source = "def store_group(out, r, q, i, s, t, p):\n"
    for n in range(group):
        source += f"    v{n} = pixel(i, divmod_i32(q * {group} + {n}, {width}), s, t, p)\n"
    for c in range(channels):
        pixels = [f"v{n}[{c}]" for n in range(group)]
        value = f"dtype({pixels[0]})" if group == 1 else f"pack_bytes(({', '.join(pixels)}))"
        source += f"    store_streaming(out, (r * {channels} + {c}) * {num_groups} + q, {value}, word)\n"
    scope = {
        "pixel": device_function(pixel),
        "divmod_i32": ctx.array_ops.divmod_i32,
        "pack_bytes": ctx.array_ops.pack_bytes,
        "store_streaming": ctx.ops.store_streaming,
        "dtype": layout.dtype,
        "word": WORDS.get(group, layout.dtype),
    }
    return ItemStore(num_groups, inline_function(generate_function("store_group", source, **scope)))


# Final observations whose threads each store an item, in the envs of a block whose episode ended.
#
# If a block has several envs, it lists those that ended: where one of ten has ended, a test of every item would take longer
# than the stores. The list is in any order, since each env has rows of its own.
#
# Letters: e an env, k its index in the block, x an item of an env.


def lists_ended(ctx: MultiAgentContext) -> bool:
    """Returns whether the blocks of the launch of `ctx` list the envs whose episode ended."""
    return ctx.same_step and ctx.launch.envs_per_block > 1


def ended_list_arrays(ctx: MultiAgentContext) -> WorkArrays:
    """Returns the array in shared memory with the number of envs whose episode ended, and then these envs.

    Args:
        ctx: the context of all agents.
    """
    return {"ended": (i32, (1 + ctx.launch.envs_per_block,))} if lists_ended(ctx) else {}


def clear_list_segments(ctx: MultiAgentContext) -> list[Segment]:
    """Compiles the segment that empties the list at the beginning of a step; none without a list.

    Args:
        ctx: the context of all agents.
    """

    @inline_function
    def clear(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        if thread == 0:
            w.ended[0] = i32(0)

    return [Segment(BLOCK, clear, barrier=False)] if lists_ended(ctx) else []


def final_item_segments(
    ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus, rows: list[tuple[RowItems, str]]
) -> list[Segment]:
    """Compiles the segments that store the final observations of envs whose episode ended.

    Args:
        ctx: the context of all agents.
        access: access to the state.
        status: the status of the episodes.
        rows: the items of rows, and the name of their output without the prefix of final observations.
    """
    if lists_ended(ctx):
        segments = [_list_segment(ctx, status), *(_listed_items_segment(access, *row) for row in rows)]
    else:
        segments = [item_segment(part.ctx, access, *part[1:], status.is_new_episode, name) for part, name in rows]
    return [*segments[:-1], segments[-1]._replace(barrier=True)] if rows else []


def _list_segment(ctx: MultiAgentContext, status: EpisodeStatus) -> Segment:
    """The segment that lists the envs whose episode ended."""
    is_new_episode, fetch_add = status.is_new_episode, ctx.array_ops.fetch_add
    assume_nonnegative = ctx.array_ops.assume_nonnegative

    @inline_function
    def list_ended(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        if is_new_episode(w, k):
            w.ended[assume_nonnegative(1 + fetch_add(w.ended, 0))] = i32(k)

    return Segment(ENVS, list_ended)


def _listed_items_segment(access: StateAccess, rows: RowItems, output_name: str) -> Segment:
    """The segment in which the threads of a block store the items of the envs of the list."""
    ctx, items_per_env, threads = rows.ctx, rows.items_per_env, rows.ctx.launch.threads_per_block
    store_item = make_store_item(*rows[:2], rows.items, access, f"final_{output_name}")
    divmod_u32, assume_nonnegative = ctx.array_ops.divmod_u32, ctx.array_ops.assume_nonnegative
    envs = envs_per_round(threads, items_per_env)

    @inline_function
    def store_own_item(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        n, x = divmod_u32(thread, items_per_env)
        while n < w.ended[0] and thread < envs * items_per_env:
            k = assume_nonnegative(w.ended[1 + n])
            store_item(b, w, assume_nonnegative(e0 + k), k, x)
            n = assume_nonnegative(n + envs)

    @inline_function
    def store_items(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
        u = thread
        while u < w.ended[0] * items_per_env:
            n, x = divmod_u32(u, items_per_env)
            k = assume_nonnegative(w.ended[1 + n])
            store_item(b, w, assume_nonnegative(e0 + k), k, x)
            u = assume_nonnegative(u + threads)

    return Segment(BLOCK, store_own_item if envs else store_items, barrier=False)


# Segments of the first kernel that store features directly to global memory.
#
# Letters: A agents per env, D features, M neighbors, e an env, e0 the first of the block, k an env's index in it, i an agent.


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


# Rows of observations that are assembled in shared memory, in a tile, and stored from there in aligned pieces of 16 bytes.
#
# Letters: A agents per env, D features of a row, M neighbors, r0 the first row of a tile, m its rows.


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


# The functions of the third kernel, which writes observations after the step, from the states in global memory.
#
# Letters: A agents per env, D features, M neighbors, e an env, i an agent, r its row, r0 the first of m rows in a tile.


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
        store_item=_make_row_kernel_store(ctx, access, features, observation_time, store_final_item, items),
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


def _make_row_kernel_store(
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
