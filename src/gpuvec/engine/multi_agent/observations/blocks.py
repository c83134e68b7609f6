"""The blocks of an observation: features of each element of an index set, between those of the neighbors and the agent's own.

A thread computes the features of one element for one agent. Consecutive threads have consecutive elements, so the stores of
each feature are coalesced.

Letters: D features of a row, M neighbors, N elements of a set, i an agent, j an item of a row, n an element, r a row.
"""

from __future__ import annotations

import math

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DeviceFunction, EnvParams, EnvState
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.observations.features import ObservationFeatures
from gpuvec.engine.multi_agent.observations.items import ItemStore
from gpuvec.engine.multi_agent.phase_functions import make_index
from gpuvec.observations import Time


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
        stores.append(ItemStore(size, _make_store(ctx, block.over, block.function, features.num_features, offset)))
        offset += width * size
    return stores


def _make_store(
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
