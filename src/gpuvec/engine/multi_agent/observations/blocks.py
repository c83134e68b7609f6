"""The blocks of an observation: features of each element of an index set, between those of the neighbors and the agent's own.

A thread computes the features of one element for one agent. Consecutive threads have consecutive elements, so the stores of
each feature are coalesced.

Letters: A agents per env, D features of a row, F features of an element, N elements of a set, e an env, k its index in the
block, i an agent, n an element, r a row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_env
from gpuvec.engine.multi_agent.observations.features import ObservationFeatures, make_output
from gpuvec.engine.multi_agent.phase_functions import make_index
from gpuvec.engine.multi_agent.segments import AGENTS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import TIME
from gpuvec.spec import Time


class BlockStore(NamedTuple):
    """The compiled function that stores the features of an element."""

    num_elements: int  # N
    store: DeviceFunction  # store(out, r, i, n, s, t, p): the features of element n for agent i, in row r of the buffer `out`


def make_block_stores(ctx: MultiAgentContext, features: ObservationFeatures) -> list[BlockStore]:
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
        stores.append(BlockStore(size, _make_store(ctx, block.over, block.function, features.num_features, offset)))
        offset += width * size
    return stores


def _make_store(
    ctx: MultiAgentContext, index_set: str, function: DeviceFunction, num_features: int, offset: int
) -> DeviceFunction:
    """`store` as in `BlockStore`, for a block that begins at `offset` of a row."""
    author_function, scatter_strided = device_function(function), ctx.array_ops.scatter_strided
    index = make_index(ctx, index_set)
    num_elements = math.prod(ctx.schema.sets[index_set])

    @inline_function
    def store(out: int, r: int, i: int, n: int, s: EnvState, t: Time, p: EnvParams) -> None:
        scatter_strided(out, r * num_features + offset + n, num_elements, author_function(i, index(n), s, t, p))

    return store


def make_row_parts(
    ctx: MultiAgentContext, features: ObservationFeatures, blocks: list[BlockStore]
) -> tuple[int, DeviceFunction]:
    """Compiles `store_part(out, r, j, i, s, t, p)`, which stores part j of row r, for a thread with one part.

    The parts are the neighbors, the last of them with the agent's own features, and then the elements of each block.

    Args:
        ctx: the context.
        features: the features of an observation.
        blocks: the functions that store the blocks.

    Returns:
        The number of parts of a row, and the function.
    """
    D, M, first = features.num_features, features.num_neighbors, max(features.num_neighbors, 1)
    source = f"def store_part(out, r, j, i, s, t, p):\n    if j < {first}:\n"
    source += f"        scatter_strided(out, r * {D} + j, {M}, other_features(i, j, s, t, p))\n" if M else ""
    source += f"        if j == {first - 1}:\n            store_self_features(out, r, self_features(i, s, t, p))\n"
    for number, block in enumerate(blocks):
        source += f"    elif j < {first + block.num_elements}:\n        store_{number}(out, r, i, j - {first}, s, t, p)\n"
        first += block.num_elements
    scope = {"scatter_strided": ctx.array_ops.scatter_strided, "store_self_features": features.store_self_features}
    scope |= {"self_features": features.self_features, "other_features": features.other_features}
    scope |= {f"store_{number}": block.store for number, block in enumerate(blocks)}
    return first, inline_function(generate_function("store_part", source, **scope))


def block_segments(
    ctx: MultiAgentContext,
    access: StateAccess,
    features: ObservationFeatures,
    blocks: list[BlockStore],
    condition: DeviceFunction | None = None,
) -> list[Segment]:
    """Compiles the segments that store the blocks of all agents, or of the final observations of envs whose episode ended.

    Args:
        ctx: the context.
        access: access to the state.
        features: has the time of an episode.
        blocks: the functions that store the blocks.
        condition: `condition(w, k)` -> whether the episode of env k ended, for final observations; None for all others.
    """
    return [_block_segment(ctx, access, features, block, condition) for block in blocks]


def _block_segment(
    ctx: MultiAgentContext,
    access: StateAccess,
    features: ObservationFeatures,
    block: BlockStore,
    condition: DeviceFunction | None,
) -> Segment:
    """The segment of one block."""
    A, (num_elements, store) = ctx.num_agents, block
    state, params, episode_time, divmod_u32 = access.state, ctx.params, features.episode_time, ctx.array_ops.divmod_u32
    out, is_stored = make_output(condition is not None), condition or every_env

    @inline_function
    def store_element(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
        if is_stored(w, k):
            i, n = divmod_u32(x, num_elements)
            store(out(b), e * A + i, i, n, state(b, w, e, k), episode_time(w.status[k, TIME]), params(b, e))

    return Segment(AGENTS, store_element, barrier=False, num_elements=A * num_elements)
