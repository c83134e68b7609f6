"""The segments of environments in which agents take turns: who acts in this step, and whose turn it is next.

Letters: A agents per env, e an env, k its index in the block, i an agent.
"""

from __future__ import annotations

import numpy as np

from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.types import Batch, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import StateAccess

i32, b1 = np.int32, np.bool_


def acting_segments(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> list[Segment]:
    """Compiles the segment that removes waiting agents from the mask of those that act; none without turns.

    It follows the loads, since whose turn it is may depend on any part of the state.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
    """
    if ctx.env.to_move is None:
        return []
    A, load, store, state, params = ctx.num_agents, ctx.ops.load, ctx.ops.store, access.state, ctx.params
    to_move, is_running, validate = device_function(ctx.env.to_move), status.is_running, ctx.options.validate
    report_invalid_action = ctx.actions.report_invalid_action

    @inline_function
    def mark_acting(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        v = e * A + i
        if is_running(w, k):
            mover = to_move(state(b, w, e, k), params(b, e))
            acts = load(b.agent_active, v, b1) and (mover < 0 or mover == i)
            store(b.agent_mask, v, acts, b1)
            if validate and acts:
                report_invalid_action(b, v)
        else:
            store(b.agent_mask, v, False, b1)

    return [Segment(AGENTS, mark_acting)]


def next_turn_segments(ctx: MultiAgentContext, access: StateAccess) -> list[Segment]:
    """Compiles the segment that stores whose turn it is in the next step; none without turns.

    Args:
        ctx: the context.
        access: access to the state.
    """
    if ctx.env.to_move is None:
        return []
    to_move, state, params, store_streaming = (
        device_function(ctx.env.to_move),
        access.state,
        ctx.params,
        ctx.ops.store_streaming,
    )

    @inline_function
    def store_turn(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        store_streaming(b.to_move, e, i32(to_move(state(b, w, e, k), params(b, e))), i32)

    return [Segment(ENVS, store_turn, barrier=False)]
