"""Observations whose threads each store an item: a group of pixels of an image, or the features of an element of a set.

Letters: A agents per env, e an env, k its index in the block, i an agent, j an item, r a row.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_env
from gpuvec.engine.multi_agent.observations.features import ObservationFeatures
from gpuvec.engine.multi_agent.segments import AGENTS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import TIME


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
