"""The observations of many agents: items that threads store directly, or rows assembled in shared memory (design/0011).

A row has the first feature of all M neighbors, the second of all M, and so on, then those of blocks, and then the agent's own.
The features of one neighbor are M elements apart, so on a GPU rows are assembled in shared memory and stored in aligned pieces
of 16 bytes.

Letters: A agents per env, D features of a row, M neighbors, e an env, e0 the first of the block, k an env's index in it, i an
agent, j a neighbor or an item of a row, r a row of the buffer, r0 the first of m rows in a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64, u32, u64
from gpuvec.engine.compiler.functions import bind, device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import row_of
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Features, Row, SharedArray, Work
from gpuvec.engine.layout.declared_schema import FeaturePart, feature_parts
from gpuvec.engine.layout.episode_rules import elapsed_steps
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent, every_env
from gpuvec.engine.multi_agent.phase_functions import make_index
from gpuvec.engine.multi_agent.segments import AGENTS, BLOCK, ENVS, Segment, envs_per_round
from gpuvec.engine.multi_agent.state_access import HAS_ENDED, TIME
from gpuvec.observations import Time

# What the functions below read: the context and the operations on buffers, as `feature_values` returns them; and for single
# segments `condition(w, k)`, and what it stores.
ctx: Any = None
ops: Any = None
items: Any = None
output: Any = None
final_output: Any = None
condition: Any = None
block: Any = None
piece: Any = None
fill_tile: Any = None
items_per_env, envs_at_once, first_thread, first_copy, tile_threads, pieces_per_row = 0, 0, 0, 0, 0, 0
same_step, whole_rows, has_neighbors = False, False, False


class ObservationFeatures(NamedTuple):
    """The sizes of the parts of a row, and the author's functions for them."""

    num_features: int  # D
    num_neighbors: int  # M; 0 if a neighbor has no features
    num_self_features: int  # number of an agent's own features, at the end of a row
    parts: list[FeaturePart]
    own_row: Row  # as many zeros as an agent has own features
    self_features: DeviceFunction  # the author's self_features(i, s, t, p)
    other_features: DeviceFunction  # the author's other_features(i, j, s, t, p)


def make_observation_features(ctx: MultiAgentContext) -> ObservationFeatures:
    """Returns the features for a context `ctx`."""
    parts, observation = feature_parts(ctx.env, ctx.schema), ctx.schema.observation
    widths = {part.name: part.width for part in parts}
    num_self_features = widths.get("self_features", 0)
    return ObservationFeatures(
        num_features=ctx.schema.num_features,
        num_neighbors=observation.max_neighbors if widths.get("other_features") else 0,
        num_self_features=num_self_features,
        parts=parts,
        own_row=row_of(f32, num_self_features),
        # Functions that an observation lacks are never called.
        self_features=device_function(observation.self_features or every_agent),
        other_features=device_function(observation.other_features or every_agent),
    )


def feature_values(ctx: MultiAgentContext) -> dict[str, Any]:
    """Returns the values with which `bind` compiles the functions of this module for a context `ctx`."""
    flags = {"same_step": ctx.options.same_step, "whole_rows": ctx.schema.has_only_self_features}
    return {"ctx": ctx, "ops": ctx.ops, "has_neighbors": ctx.features.num_neighbors > 0, **flags}


def episode_time(t: int) -> Time:
    """Returns the time of an episode as the author's functions receive it."""
    return Time(i32(t), ctx.options.step_limit)


def last_or_current_time(b: Batch, e: int, clock: int) -> int:
    """Returns the time of an env's episode, that of the last one until the env is reset."""
    start = ops.load(b.start, e, u32)
    return ops.load(b.last_time, e, i32) if start == u32(clock + u32(1)) else elapsed_steps(clock, start)


def compute_self_features(b: Batch, w: Work, e: int, state_index: int, i: int) -> Any:
    """Returns agent i's own features, from the state at that index of the work."""
    s, t = ctx.access.state(b, w, e, state_index), episode_time(w.status[state_index, TIME])
    return ctx.features.self_features(i, s, t, ctx.params(b, e))


def store_self_features(out: int, r: int, values: Features) -> None:
    """Stores own features at the end of row r of `out`; a row without other features is stored with the widest stores."""
    if whole_rows:
        ops.store_row_streaming(out, r, ops.to_floats(values, ctx.features.own_row))
    else:
        first = (r + 1) * ctx.features.num_features - ctx.features.num_self_features
        ctx.array_ops.scatter_strided(out, first, 1, values)


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
    items: ItemStore

    @property
    def items_per_env(self) -> int:
        """The number of items of all of these agents of an env."""
        return self.ctx.num_agents * self.items.items_per_row


def make_row_items(ctx: MultiAgentContext) -> RowItems:
    """Compiles the functions of the items of the rows of all agents of a context `ctx`."""
    return RowItems(ctx, make_image_store(ctx) if ctx.schema.obs.is_image else make_item_of_row(ctx, make_block_stores(ctx)))


def item_segment(rows: RowItems, output_name: str, condition: DeviceFunction = every_env) -> Segment:
    """Compiles the segment that stores the items of all agents, in envs that a condition selects.

    Args:
        rows: the items.
        output_name: the name of the output.
        condition: `condition(w, k)` -> whether they are those of env k.
    """
    function = bind(store_item_if, **item_values(rows, output_name), condition=condition)
    return Segment(AGENTS, function, barrier=False, num_elements=rows.items_per_env)


def item_values(rows: RowItems, output_name: str) -> dict[str, Any]:
    """Returns the values with which `bind` compiles functions that store items to an output. Arguments as of `item_segment`."""
    source = f"def output(b):\n    return b.{output_name}{rows.ctx.schema.suffix}\n"
    output = inline_function(generate_function("output", source))
    return feature_values(rows.ctx) | {"items": rows.items, "output": output}


def store_item(b: Batch, w: Work, e: int, k: int, x: int) -> None:
    """Stores item x of env e, number k of its block."""
    i, j = (0, x) if ctx.num_agents == 1 else ctx.array_ops.divmod_u32(x, items.items_per_row)
    s, t = ctx.access.state(b, w, e, k), episode_time(w.status[k, TIME])
    items.store(output(b), e * ctx.num_agents + i, j, i, s, t, ctx.params(b, e))


def store_item_if(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
    """Stores item x of env e, if the condition selects it."""
    if condition(w, k):
        store_item(b, w, e, k, x)


def store_element(b: Batch, w: Work, e: int, k: int, n: int, clock: int) -> None:
    """Stores the features of element n of a set for all agents.

    The index of the element, and values that do not depend on the agent, are computed once.
    """
    s, t, p = ctx.access.state(b, w, e, k), episode_time(w.status[k, TIME]), ctx.params(b, e)
    i = ctx.array_ops.assume_nonnegative(0)
    while i < ctx.num_agents:
        items.store(b.obs, ctx.array_ops.assume_nonnegative(e * ctx.num_agents + i), n, i, s, t, p)
        i = ctx.array_ops.add_nonnegative(i, 1)


# The blocks of an observation: features of each element of an index set, between those of the neighbors and the agent's own.
#
# A thread computes the features of one element for one agent. Consecutive threads have consecutive elements, so the stores of
# each feature are coalesced.
#
# Letters: D features of a row, M neighbors, N elements of a set, i an agent, j an item of a row, n an element, r a row.


class Block(NamedTuple):
    """A block of a row."""

    offset: int  # of its first feature in a row
    num_elements: int
    features: DeviceFunction  # the author's function
    index: DeviceFunction  # index(n) -> the index of element n


def make_block_stores(ctx: MultiAgentContext) -> list[ItemStore]:
    """Compiles the function of each block of a context `ctx`."""
    stores, offset = [], 0
    for part in ctx.features.parts:
        if part.over:
            layout = Block(offset, part.num_elements, device_function(part.function), make_index(ctx, part.over))
            store = bind(store_block_element, ctx=ctx, block=layout)
            stores.append(ItemStore(part.num_elements, store))
        offset += part.width * part.num_elements
    return stores


def store_block_element(out: int, r: int, n: int, i: int, s: EnvState, t: Time, p: EnvParams) -> None:
    """As `store` of `ItemStore`, for element n of a block."""
    first = r * ctx.features.num_features + block.offset + n
    ctx.array_ops.scatter_strided(out, first, block.num_elements, block.features(i, block.index(n), s, t, p))


def make_item_of_row(ctx: MultiAgentContext, blocks: list[ItemStore]) -> ItemStore:
    """Compiles the function that stores any item of a row, for a kernel whose threads have one each.

    The items are the neighbors, the last of them with the agent's own features, and then the elements of each block.

    Args:
        ctx: the context.
        blocks: the functions that store the blocks.
    """
    D, M, first = ctx.features.num_features, ctx.features.num_neighbors, max(ctx.features.num_neighbors, 1)
    store_own = bind(store_self_features, ctx=ctx, ops=ctx.ops, whole_rows=ctx.schema.has_only_self_features)
    source = f"def store_item(out, r, j, i, s, t, p):\n    {f'if j < {first}' if blocks else 'if True'}:\n"
    source += f"        scatter_strided(out, r * {D} + j, {M}, other_features(i, j, s, t, p))\n" if M else ""
    source += f"        if j == {first - 1}:\n            store_self_features(out, r, self_features(i, s, t, p))\n"
    for number, block in enumerate(blocks):
        source += f"    elif j < {first + block.items_per_row}:\n        store_{number}(out, r, j - {first}, i, s, t, p)\n"
        first += block.items_per_row
    scope = {"scatter_strided": ctx.array_ops.scatter_strided, "store_self_features": store_own}
    scope |= {"self_features": ctx.features.self_features, "other_features": ctx.features.other_features}
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
    return ctx.options.same_step and ctx.launch.envs_per_block > 1


def clear_list(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Empties the list at the beginning of a step."""
    if thread == 0:
        w.ended[0] = i32(0)


def final_item_segments(ctx: MultiAgentContext, is_ended: DeviceFunction, rows: list[tuple[RowItems, str]]) -> list[Segment]:
    """Compiles the segments that store the final observations of envs whose episode ended.

    Args:
        ctx: the context of all agents.
        is_ended: `is_ended(w, k)` -> whether the episode of env k of the block ended.
        rows: the items of rows, and the name of their output without the prefix of final observations.
    """
    if lists_ended(ctx):
        segments = [Segment(ENVS, bind(list_ended, ctx=ctx, condition=is_ended))]
        for part, name in rows:
            envs = envs_per_round(part.ctx.launch.threads_per_block, part.items_per_env)
            values = item_values(part, f"final_{name}") | {"items_per_env": part.items_per_env, "envs_at_once": envs}
            store = bind(store_own_items if envs else store_listed_items, **values)
            segments.append(Segment(BLOCK, store, barrier=False))
    else:
        segments = [item_segment(part, f"final_{name}", is_ended) for part, name in rows]
    return [*segments[:-1], segments[-1]._replace(barrier=True)] if rows else []


def list_ended(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Lists the envs whose episode ended."""
    if condition(w, k):
        w.ended[ctx.array_ops.assume_nonnegative(1 + ctx.array_ops.fetch_add(w.ended, 0))] = i32(k)


def store_own_items(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Stores the items of the envs of the list; each thread keeps the number of its item."""
    n, x = ctx.array_ops.divmod_u32(thread, items_per_env)
    while n < w.ended[0] and thread < envs_at_once * items_per_env:
        k = ctx.array_ops.assume_nonnegative(w.ended[1 + n])
        store_item(b, w, ctx.array_ops.assume_nonnegative(e0 + k), k, x)
        n = ctx.array_ops.assume_nonnegative(n + envs_at_once)


def store_listed_items(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Stores the items of the envs of the list."""
    u = thread
    while u < w.ended[0] * items_per_env:
        n, x = ctx.array_ops.divmod_u32(u, items_per_env)
        k = ctx.array_ops.assume_nonnegative(w.ended[1 + n])
        store_item(b, w, ctx.array_ops.assume_nonnegative(e0 + k), k, x)
        u = ctx.array_ops.assume_nonnegative(u + ctx.launch.threads_per_block)


# Segments of the first kernel that store features directly to global memory.
#
# Letters: A agents per env, D features, M neighbors, e an env, e0 the first of the block, k an env's index in it, i an agent.


def store_neighbor(b: Batch, w: Work, out: int, e0: int, x: int, state_index: int) -> None:
    """Stores the features of neighbor x of the block, whose states begin at that index of the work, to the buffer `out`."""
    v, j = ctx.array_ops.divmod_u32(x, ctx.features.num_neighbors)
    k, i = ctx.array_ops.divmod_u32(v, ctx.num_agents)
    s, t = ctx.access.state(b, w, e0 + k, state_index + k), episode_time(w.status[state_index + k, TIME])
    first = e0 * (ctx.num_agents * ctx.features.num_features) + (v * ctx.features.num_features + j)
    values = ctx.features.other_features(i, j, s, t, ctx.params(b, e0 + k))
    ctx.array_ops.scatter_strided(out, first, ctx.features.num_neighbors, values)


def store_neighbors(b: Batch, w: Work, out: int, e0: int, first: int, end: int, thread: int) -> None:
    """Stores the features of the neighbors of agents `first` to `end` of the block; each thread has neighbors with a stride."""
    x = first * ctx.features.num_neighbors + thread
    while x < end * ctx.features.num_neighbors:
        store_neighbor(b, w, out, e0, x, 0)
        x = ctx.array_ops.assume_nonnegative(x + ctx.launch.threads_per_block)


def store_neighbors_of_env(b: Batch, w: Work, out: int, e0: int, first: int, end: int, thread: int) -> None:
    """As `store_neighbors`, for a block of one thread and one env."""
    s, t, p = ctx.access.state(b, w, e0, 0), episode_time(w.status[0, TIME]), ctx.params(b, e0)
    for i in range(ctx.num_agents):
        for j in range(ctx.features.num_neighbors):
            first_element = (e0 * ctx.num_agents + i) * ctx.features.num_features + j
            values = ctx.features.other_features(i, j, s, t, p)
            ctx.array_ops.scatter_strided(out, first_element, ctx.features.num_neighbors, values)


def store_self(b: Batch, w: Work, out: int, e: int, state_index: int, i: int) -> None:
    """Stores agent i's own features, from the state at that index of the work, to the buffer `out`."""
    store_self_features(out, e * ctx.num_agents + i, compute_self_features(b, w, e, state_index, i))


def direct_segments(values: dict[str, Any], neighbors: Callable[..., None], own: Segment) -> list[Segment]:
    """Compiles the segment of neighbors' features, if there are any, and then that of own features.

    Args:
        values: those of `feature_values`.
        neighbors: the function of a segment of blocks.
        own: the other segment, whose function is not compiled.
    """
    if values["ctx"].launch.threads_per_block == 1:
        values = values | {"store_neighbors": store_neighbors_of_env}
    first = [Segment(BLOCK, bind(neighbors, **values), barrier=False)] if values["has_neighbors"] else []
    return [*first, own._replace(function=bind(own.function, **values))]


def neighbors_of_block(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Stores neighbors' features of all envs of a block."""
    store_neighbors(b, w, b.obs, e0, 0, m * ctx.num_agents, thread)


def self_of_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Stores own features of an agent."""
    store_self(b, w, b.obs, e, k, i)


def final_neighbors_of_block(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Stores neighbors' features in final observations of envs whose episode ended."""
    for k in range(m):
        if w.status[k, HAS_ENDED]:
            store_neighbors(b, w, b.final_obs, e0, k * ctx.num_agents, (k + 1) * ctx.num_agents, thread)


def final_self_of_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Stores own features in the final observation of an agent whose episode ended."""
    if w.status[k, HAS_ENDED]:
        store_self(b, w, b.final_obs, e, k, i)


def staged_final_neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Stores neighbors' features in final observations, from copies of the states."""
    x = thread - first_thread
    while 0 <= x < m * (ctx.num_agents * ctx.features.num_neighbors):
        if w.status[ctx.array_ops.divmod_u32(x, ctx.num_agents * ctx.features.num_neighbors)[0], HAS_ENDED]:
            store_neighbor(b, w, b.final_obs, e0, x, first_copy)
        x = ctx.array_ops.assume_nonnegative(x + (ctx.launch.threads_per_block - first_thread))


def staged_final_self(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Stores own features in final observations, from copies of the states."""
    x = thread - first_thread
    while 0 <= x < m * ctx.num_agents:
        k, i = ctx.array_ops.divmod_u32(x, ctx.num_agents)
        if w.status[k, HAS_ENDED]:
            e, state_index = ctx.array_ops.assume_nonnegative(e0 + k), ctx.array_ops.assume_nonnegative(first_copy + k)
            store_self(b, w, b.final_obs, e, state_index, i)
        x = ctx.array_ops.assume_nonnegative(x + (ctx.launch.threads_per_block - first_thread))


# Rows of observations that are assembled in shared memory, in a tile, and stored from there in aligned pieces of 16 bytes.
#
# Letters: A agents per env, D features of a row, M neighbors, r0 the first row of a tile, m its rows.


ROW_PER_WARP_MIN_NEIGHBORS = 64  # With so many neighbors, few threads of a warp with a row of its own are idle.
NEIGHBORS_PER_ITERATION = 4  # A thread computes the features of so many neighbors before it stores them.


def tile_elements(rows: int, num_features: int) -> int:
    """Returns the elements of a tile of so many `rows` of `num_features`, for any alignment of its first row to 16 bytes."""
    return rows * num_features + 8


def tile_offset(b: Batch, r0: int) -> np.int64:
    """Returns the offset of row r0 from an address aligned to 16 bytes, in floats; the first row of a tile has the same."""
    return np.int64(((u64(b.obs) >> u64(2)) + u64(r0 * ctx.features.num_features)) & u64(3))


def make_fill(ctx: MultiAgentContext, agent_at: DeviceFunction, threads: int, rows: int) -> DeviceFunction:
    """Compiles `fill(b, w, tile, offset, origin, m, thread)`: writes neighbors' features of m rows to `tile` from `offset` on.

    Several threads share a row: as many as there are neighbors, or whole warps if there are many neighbors, so that few threads
    are idle. Each of them looks up the agent of the row once. A thread computes the features of several neighbors before it
    stores them, so that it reads the data of the row's agent once.

    Args:
        ctx: the context.
        agent_at: `agent_at(b, w, origin, row)` -> (i, s, t, p) of the agent of the row.
        threads: the number of threads that fill the tile.
        rows: the largest number of rows of the tile.
    """
    D, M = ctx.features.num_features, ctx.features.num_neighbors
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
        "divmod_u32": ctx.array_ops.divmod_u32,
        "assume_nonnegative": ctx.array_ops.assume_nonnegative,
        "store_strided": ctx.array_ops.store_strided,
    }
    scope |= {"agent_at": agent_at, "other_features": ctx.features.other_features}
    return inline_function(generate_function("fill", source, **scope))


def drain_tile(b: Batch, tile: SharedArray, r0: int, m: int, thread: int) -> None:
    """Stores rows r0 to r0 + m from `tile` to the buffer of observations, by at least 4 threads."""
    offset = tile_offset(b, r0)
    origin, end = r0 * ctx.features.num_features - offset, offset + m * ctx.features.num_features
    aligned_start, aligned_end = (offset + 3) & ~3, end & ~3
    q = ctx.array_ops.assume_nonnegative(aligned_start + 4 * thread)
    while q < aligned_end:
        ctx.array_ops.copy_float4(b.obs, origin + q, tile, q)
        q = ctx.array_ops.assume_nonnegative(q + 4 * tile_threads)
    # The floats before the first aligned piece, and after the last one.
    if thread < 4:
        if offset <= thread and thread < min(aligned_start, end):
            ops.store(b.obs, origin + thread, tile[thread], f32)
        if offset <= aligned_end + thread and aligned_end + thread < end:
            ops.store(b.obs, origin + aligned_end + thread, tile[aligned_end + thread], f32)


def fill_segments(values: dict[str, Any]) -> list[Segment]:
    """Compiles the segments that assemble the rows of all agents of a block in `w.tile`; `values` are of `feature_values`."""
    ctx = values["ctx"]
    segments = [Segment(AGENTS, bind(fill_self, **values))]
    if values["has_neighbors"]:
        rows, agent_at = ctx.launch.envs_per_block * ctx.num_agents, bind(agent_in_block, **values)
        fill = make_fill(ctx, agent_at, ctx.launch.threads_per_block, rows)
        segments.insert(0, Segment(BLOCK, bind(fill_neighbors, **values, fill_tile=fill), barrier=False))
    return segments


def agent_in_block(b: Batch, w: Work, e0: int, u: int) -> tuple[object, ...]:
    """As `agent_at` of `make_fill`, for row u of a block, in the first kernel."""
    k, i = ctx.array_ops.divmod_u32(u, ctx.num_agents)
    return i, ctx.access.state(b, w, e0 + k, k), episode_time(w.status[k, TIME]), ctx.params(b, e0 + k)


def fill_neighbors(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Writes neighbors' features of all envs of a block to the tile."""
    fill_tile(b, w, w.tile, tile_offset(b, e0 * ctx.num_agents), e0, m * ctx.num_agents, thread)


def fill_self(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Writes own features of an agent to the tile."""
    end = tile_offset(b, (e - k) * ctx.num_agents) + (k * ctx.num_agents + i + 1) * ctx.features.num_features
    own = compute_self_features(b, w, e, k, i)
    ctx.array_ops.store_strided(w.tile, end - ctx.features.num_self_features, 1, own)


def drain_block(b: Batch, w: Work, e0: int, m: int, thread: int, clock: int) -> None:
    """Stores the rows of a block from the tile."""
    drain_tile(b, w.tile, e0 * ctx.num_agents, m * ctx.num_agents, thread)


def self_rows_segment(values: dict[str, Any]) -> Segment:
    """Compiles the segment that stores rows with own features alone. `w.tile` has a row for each thread.

    If they were stored from registers, each piece of a row would write a part of a sector of memory. The cache combines such
    writes only if they follow each other soon (design/0011).

    Args:
        values: those of `feature_values`.
    """
    num_features = values["ctx"].features.num_features
    width = next(k for k in (4, 2, 1) if num_features % k == 0)  # All rows are aligned to so many floats.
    elements = "".join(f"tile[{width} * q + {k}], " for k in range(width))
    piece = inline_function(generate_function("piece", f"def piece(tile, q):\n    return ({elements})\n"))
    values = values | {"piece": piece, "pieces_per_row": num_features // width}
    return Segment(AGENTS, bind(fill_self_row, **values), barrier=False, after_round=bind(drain_self_rows, **values))


def fill_self_row(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Writes the row of an agent to the row of its thread in the tile."""
    _, x = ctx.array_ops.divmod_u32(i, ctx.launch.threads_per_block)
    ctx.array_ops.store_strided(w.tile, x * ctx.features.num_features, 1, compute_self_features(b, w, e, k, i))


def drain_self_rows(b: Batch, w: Work, e0: int, u: int, thread: int, clock: int) -> None:
    """Stores the rows of the tile, those of the agents from u on."""
    first, q = (e0 * ctx.num_agents + u) * pieces_per_row, thread
    end = min(ctx.launch.threads_per_block, ctx.array_ops.assume_nonnegative(ctx.num_agents - u)) * pieces_per_row
    while q < end:
        ops.store_row_streaming(b.obs, first + q, piece(w.tile, q))
        q = ctx.array_ops.assume_nonnegative(q + ctx.launch.threads_per_block)


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


def make_row_kernel(ctx: MultiAgentContext) -> RowKernel:
    """Compiles the functions for a context `ctx`."""
    parts = [make_row_items(part) for part in ctx.parts]
    part_values = [row_values(part) for part in parts]
    stores = [bind(store_row_item, **values) for values in part_values]
    items_per_env = sum(part.items_per_env for part in parts)
    if ctx.schema.has_tile_rows:
        threads = ctx.launch.threads_per_row_block
        values = part_values[0] | {"tile_threads": threads}
        if values["has_neighbors"]:
            values["fill_tile"] = make_fill(ctx, bind(agent_of_row, **values), threads, ctx.launch.tile_rows)
        return RowKernel(stores[0], TileFunctions(bind(fill_rows, **values), bind(drain_rows, **values)), items_per_env)
    if len(stores) == 1:
        return RowKernel(stores[0], None, items_per_env)
    # There may be more than 2**32 items.
    source = f"def store_item(b, x, is_step):\n    e = i64(u64(x) // u64({items_per_env}))\n    y = x - e * {items_per_env}\n"
    first, scope = 0, {f"store_{n}": store for n, store in enumerate(stores)}
    for n, part in enumerate(parts):
        source += f"    if {first} <= y < {first + part.items_per_env}:\n"
        source += f"        store_{n}(b, e * {part.items_per_env} + y - {first}, is_step)\n"
        first += part.items_per_env
    store_item = inline_function(generate_function("store_item", source, **scope, i64=i64, u64=u64))
    return RowKernel(store_item, None, items_per_env)


def observation_time(b: Batch, e: int) -> Time:
    """Returns the time of env e after this reset or step. The clocks of all blocks have been advanced."""
    return episode_time(last_or_current_time(b, e, ops.load(b.clock, 0, u32)))


def row_values(part: RowItems) -> dict[str, Any]:
    """Returns the values with which `bind` compiles functions that store items of rows from global memory."""
    source = f"def output(b):\n    return b.{'final_obs' if part.ctx.options.same_step else 'obs'}{part.ctx.schema.suffix}\n"
    final_output = inline_function(generate_function("output", source))
    return item_values(part, "obs") | {"final_output": final_output}


def store_final_row_item(b: Batch, e: int, i: int, j: int) -> None:
    """Stores item j of the final observation of agent i."""
    t = episode_time(ops.load(b.last_time, e, i32))
    items.store(final_output(b), e * ctx.num_agents + i, j, i, ctx.access.load_final(b, e), t, ctx.params(b, e))


def store_row_item(b: Batch, x: int, is_step: bool) -> None:
    """As `store_item` of `RowKernel`, in which x counts the items of agents with equal spaces."""
    r = i64(u64(x) // u64(items.items_per_row))  # There may be more than 2**32 items.
    j = x - r * items.items_per_row
    e, i = ctx.array_ops.divmod_u32(r, ctx.num_agents)
    items.store(output(b), r, j, i, ctx.access.from_global(b, e), observation_time(b, e), ctx.params(b, e))
    if same_step and is_step and ops.load(b.final_mask, e, b1):
        store_final_row_item(b, e, i, j)


def agent_of_row(b: Batch, w: Work, r0: int, x: int) -> tuple[object, ...]:
    """As `agent_at` of `make_fill`, for row x of a tile, in the third kernel."""
    e, i = ctx.array_ops.divmod_u32(r0 + x, ctx.num_agents)
    return i, ctx.access.from_global(b, e), observation_time(b, e), ctx.params(b, e)


def fill_rows(b: Batch, tile: SharedArray, r0: int, m: int, thread: int) -> None:
    """As `fill` of `TileFunctions`."""
    offset, x = tile_offset(b, r0), thread
    if has_neighbors:
        fill_tile(b, 0, tile, offset, r0, m, thread)
    while x < m:
        i, s, t, p = agent_of_row(b, 0, r0, x)
        first = offset + (x + 1) * ctx.features.num_features - ctx.features.num_self_features
        ctx.array_ops.store_strided(tile, first, 1, ctx.features.self_features(i, s, t, p))
        x += tile_threads


def drain_rows(b: Batch, tile: SharedArray, r0: int, m: int, thread: int, is_step: bool) -> None:
    """As `drain` of `TileFunctions`."""
    drain_tile(b, tile, r0, m, thread)
    if same_step and is_step:
        e, _ = ctx.array_ops.divmod_u32(r0, ctx.num_agents)
        while e * ctx.num_agents < r0 + m:
            if ops.load(b.final_mask, e, b1):
                first, end, x = max(r0, e * ctx.num_agents), min(r0 + m, (e + 1) * ctx.num_agents), thread
                while x < (end - first) * items.items_per_row:
                    r, j = ctx.array_ops.divmod_u32(x, items.items_per_row)
                    i = ctx.array_ops.assume_nonnegative(first - e * ctx.num_agents + r)
                    store_final_row_item(b, e, i, j)
                    x += tile_threads
            e = ctx.array_ops.assume_nonnegative(e + 1)
