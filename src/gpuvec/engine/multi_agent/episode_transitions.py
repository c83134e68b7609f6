"""The functions of the segments in which episodes of many agents end and the next ones start.

Letters: e an env, k its index in the block, i an agent of the env.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import HAS_ENDED, TIME, VOTES_AGAINST

f32, i32, u32, b1 = np.float32, np.int32, np.uint32, np.bool_


def make_check_end(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> DeviceFunction:
    """Compiles `check_end(b, w, e, k, clock)`, which returns whether the episode of an env ended, and stores the result.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
    """
    store, store_streaming, limit = ctx.ops.store, ctx.ops.store_streaming, ctx.step_limit
    is_running, awaits_reset, current_clock = status.is_running, status.awaits_reset, status.current_clock
    stages_final, stage_scalars = ctx.num_final_copies > 0, access.stage_scalars
    one_reward_per_env = ctx.options.reward != "agents"
    same_step, next_step, sum_rewards = ctx.same_step, ctx.next_step, _make_reward_sum(ctx, access)

    @inline_function
    def check_end(b: Batch, w: Work, e: int, k: int, clock: int) -> Any:
        is_terminated = is_running(w, k) and w.status[k, VOTES_AGAINST] == i32(0)
        is_truncated = is_running(w, k) and w.status[k, TIME] >= limit
        has_ended = is_terminated or is_truncated
        w.status[k, HAS_ENDED] = has_ended
        if stages_final:
            stage_scalars(w, k)
        store_streaming(b.terminated, e, is_terminated, b1)
        store_streaming(b.truncated, e, is_truncated, b1)
        if one_reward_per_env:
            store_streaming(b.reward, e, sum_rewards(b, w, e, k), f32)
        if has_ended:
            store(b.last_time, e, w.status[k, TIME], i32)
        if has_ended and same_step:
            store(b.start, e, current_clock(w, k), u32)
        elif has_ended or (awaits_reset(w, k) and not next_step):
            store(b.start, e, u32(current_clock(w, k) + u32(1)), u32)
        if same_step:
            store_streaming(b.final_mask, e, has_ended, b1)
        if next_step and awaits_reset(w, k):
            w.status[k, TIME] = i32(0)
        return has_ended

    return check_end


def _make_reward_sum(ctx: MultiAgentContext, access: StateAccess) -> DeviceFunction:
    """`sum_rewards(b, w, e, k)`: the sum of the rewards of all agents of an env, or of one role, in the order of agents."""
    A, load, state, role_of, roles = ctx.num_agents, ctx.ops.load, access.state, access.role, list(ctx.schema.roles)
    role = roles.index(ctx.options.reward) if ctx.options.reward in roles else -1

    @inline_function
    def sum_rewards(b: Batch, w: Work, e: int, k: int) -> np.float32:
        s, total = state(b, w, e, k), f32(0.0)
        for i in range(A):
            if role < 0 or role_of(s, i) == role:
                total += load(b.agent_reward, e * A + i, f32)
        return total

    return sum_rewards


def make_end_env(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> DeviceFunction:
    """Compiles `end_env(b, w, e, k, clock)`, which resets the scalars of an env whose episode ended.

    If another kernel writes the observations, it saves the last values for that kernel.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
    """
    split, save_final_scalars, clear_scalars = ctx.launch.split, access.save_final_scalars, access.clear_scalars
    is_new_episode = status.is_new_episode

    @inline_function
    def end_env(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        if is_new_episode(w, k):
            if split:
                save_final_scalars(b, w, e, k)
            clear_scalars(w, k)
            w.status[k, TIME] = i32(0)

    return end_env


def make_save_final_agent(access: StateAccess, condition: DeviceFunction) -> DeviceFunction:
    """Compiles `save_final_agent(b, w, e, k, i, clock)`, which saves an agent's last state for final observations.

    Args:
        access: access to the state.
        condition: `condition(w, k)` -> whether the episode of env k of the block ended.
    """
    save_final = access.save_final

    @inline_function
    def save_final_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k):
            save_final(b, w, e, k, i)

    return save_final_agent


def make_start_episode(
    ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus, condition: DeviceFunction
) -> DeviceFunction:
    """Compiles `start_episode(b, w, e, k, i, clock)`, which writes an agent's state in an episode that begins in this step.

    If another kernel writes final observations, it saves the last state for that kernel.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
        condition: `condition(w, k)` -> whether an episode begins in env k of the block.
    """
    saves_final, save_final, params = ctx.launch.split and ctx.same_step, access.save_final, ctx.params
    start_agent, step_key, current_clock = status.start_agent, status.step_key, status.current_clock

    @inline_function
    def start_episode(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if condition(w, k):
            if saves_final:
                save_final(b, w, e, k, i)
            start_agent(b, w, e, k, i, step_key(w, k, current_clock(w, k), i32(0)), params(b, e))

    return start_episode
