"""Final observations whose threads each store an item, in the envs of a block whose episode ended.

If a block has several envs, it lists those that ended: where one of ten has ended, a test of every item would take longer than
the stores. The list is in any order, since each env has rows of its own.

Letters: e an env, k its index in the block, x an item of an env.
"""

from __future__ import annotations

import numpy as np

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Batch, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.observations.items import RowItems, item_segment, make_store_item
from gpuvec.engine.multi_agent.segments import BLOCK, ENVS, Segment, envs_per_round
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import WorkArrays

i32 = np.int32


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
