"""The parts of a step of many agents: it begins, agents act, rewards and votes are collected, and episodes end.

Letters: e an env, k its place in the block, i an agent of the env, v that agent among all of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import (
    AWAITS_RESET,
    CLOCK,
    COUNTERS,
    HAS_ENDED,
    RNG_STREAM,
    START,
    TIME,
    VOTES_AGAINST,
)

f32, i32, i64, u32, u64, b1 = np.float32, np.int32, np.int64, np.uint32, np.uint64, np.bool_


def make_counter_reset(ctx: MultiAgentContext) -> DeviceFunction:
    """`clear_counters(w, k)`: sets the counters of reductions of env k to 0, for a context `ctx`."""
    num_counters = ctx.num_counters

    @inline_function
    def clear_counters(w: Work, k: int) -> None:
        for j in range(num_counters):
            w.status[k, COUNTERS + j], w.best_rank[k, j] = i32(0), i64(0)

    return clear_counters


def make_load_env(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> DeviceFunction:
    """`load_env(b, w, e, k, clock)`: loads what the agents of an env have in common, when a step begins.

    Args:
        ctx: the context.
        access: the functions for the state.
        status: the functions for the episodes.
    """
    load, atomic_min, load_stream = ctx.ops.load, ctx.ops.atomic_min, ctx.rng_streams.load
    load_scalars, clear_scalars, awaits_reset = access.load_scalars, access.clear_scalars, status.awaits_reset
    same_step, next_step, validate, clear_counters = ctx.same_step, ctx.next_step, ctx.options.validate, make_counter_reset(ctx)

    @inline_function
    def load_env(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        start = load(b.start, e, u32)
        w.status[k, CLOCK], w.status[k, START], w.status[k, TIME] = i32(clock), i32(start), i32(clock - start)
        w.status[k, AWAITS_RESET] = not same_step and start == u32(clock)
        words = load_stream(b, e)
        for j in range(4):
            w.status[k, RNG_STREAM + j] = i32(words[j])
        w.status[k, VOTES_AGAINST] = i32(0)
        clear_counters(w, k)
        load_scalars(b, w, e, k)
        if awaits_reset(w, k):
            if next_step:
                clear_scalars(w, k)
            else:
                w.status[k, TIME] = load(b.last_time, e, i32)
                if validate:
                    atomic_min(b.faults, 1, u64(e) << u64(32))

    return load_env


def make_load_agent(ctx: MultiAgentContext, access: StateAccess) -> DeviceFunction:
    """`load_agent(b, w, e, k, i, clock)`: loads an agent's state and action, and stores whether it is active.

    Args:
        ctx: the context.
        access: the functions for the state.
    """
    A, load, store, params = ctx.num_agents, ctx.ops.load, ctx.ops.store, ctx.params
    stage_action, report_invalid_action = ctx.actions.stage_action, ctx.actions.report_invalid_action
    active = device_function(ctx.env.active) if ctx.env.active is not None else every_agent
    state, load_to_shared, stages_active = access.state, access.load_to_shared, ctx.stages_active
    stage_state, same_step, validate = ctx.launch.stage_state, ctx.same_step, ctx.options.validate

    @inline_function
    def load_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        # It reads nothing that another thread writes before the barrier; `start` is written when episodes end.
        v = e * A + i
        if stage_state:
            load_to_shared(b, w, e, k, i)
            stage_action(b, w, v, k * A + i)
        start = load(b.start, e, u32)
        is_active = (same_step or start != u32(clock)) and active(i, state(b, w, e, k), params(b, e))
        store(b.agent_mask, v, is_active, b1)
        if stages_active:
            w.was_active[k * A + i] = is_active
        if validate and is_active:
            report_invalid_action(b, v)

    return load_agent


def make_phase(
    ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus, phase: Callable[..., None]
) -> DeviceFunction:
    """`act(b, w, e, k, i, clock)`: an agent's part in a phase, if the episode runs.

    Args:
        ctx: the context.
        access: the functions for the state.
        status: the functions for the episodes.
        phase: the author's function.
    """
    A, stage_state, params = ctx.num_agents, ctx.launch.stage_state, ctx.params
    load_action, read_staged_action = ctx.actions.load_action, ctx.actions.read_staged_action
    state, is_running, step_key, run_phase = access.state, status.is_running, status.step_key, device_function(phase)

    @inline_function
    def act(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        if is_running(w, k):
            action = read_staged_action(w, k * A + i) if stage_state else load_action(b, e * A + i)
            key = step_key(w, k, u32(w.status[k, START]), w.status[k, TIME])
            run_phase(i, state(b, w, e, k), action, key, params(b, e))

    return act


def make_score_agent(
    ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus, episode_time: DeviceFunction
) -> DeviceFunction:
    """`score_agent(b, w, e, k, i, clock)`: an agent's reward, its vote, and whether it became inactive.

    Args:
        ctx: the context.
        access: the functions for the state.
        status: the functions for the episodes.
        episode_time: `episode_time(t)` -> Time.
    """
    A, load, store, store_streaming = ctx.num_agents, ctx.ops.load, ctx.ops.store, ctx.ops.store_streaming
    reward, vote, params = device_function(ctx.env.reward), device_function(ctx.env.terminated), ctx.params
    active = device_function(ctx.env.active) if ctx.env.active is not None else every_agent
    state, stage_copy, stages_final = access.state, access.stage_copy, ctx.final_places > 0
    is_running, increment, stages_active = status.is_running, ctx.counters.increment, ctx.stages_active
    one_reward = ctx.options.reward != "agents"

    @inline_function
    def score_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        v, s, p = e * A + i, state(b, w, e, k), params(b, e)
        agent_reward, has_left = f32(0.0), False
        if is_running(w, k):
            agent_reward = f32(reward(i, s, episode_time(w.status[k, TIME]), p))
            was_active = w.was_active[k * A + i] if stages_active else load(b.agent_mask, v, b1)
            has_left = was_active and not active(i, s, p)
            if not vote(i, s, p):
                increment(w.status, k, VOTES_AGAINST)
        if stages_final:
            stage_copy(w, k, i)
        store_streaming(b.agent_terminated, v, has_left, b1)
        if one_reward:
            store(b.agent_reward, v, agent_reward, f32)
        else:
            store_streaming(b.reward, v, agent_reward, f32)

    return score_agent


def make_check_end(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> DeviceFunction:
    """`check_end(b, w, e, k, clock)` -> whether the episode of an env ended, which it stores with the env's reward.

    Args:
        ctx: the context.
        access: the functions for the state.
        status: the functions for the episodes.
    """
    store, store_streaming, limit = ctx.ops.store, ctx.ops.store_streaming, ctx.step_limit
    is_running, awaits_reset, current_clock = status.is_running, status.awaits_reset, status.current_clock
    stages_final, stage_scalars, one_reward = ctx.final_places > 0, access.stage_scalars, ctx.options.reward != "agents"
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
        if one_reward:
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
    """`sum_rewards(b, w, e, k)`: the rewards of all agents of an env, or of one role, added in the order of the agents."""
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
    """`end_env(b, w, e, k, clock)`: the scalars of an env whose episode ended become those of a new one.

    If another kernel writes the observations, their last values are saved for it.

    Args:
        ctx: the context.
        access: the functions for the state.
        status: the functions for the episodes.
    """
    split, save_final_scalars, clear_scalars = ctx.launch.split, access.save_final_scalars, access.clear_scalars
    has_ended = status.has_ended

    @inline_function
    def end_env(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        if has_ended(w, k):
            if split:
                save_final_scalars(b, w, e, k)
            clear_scalars(w, k)
            w.status[k, TIME] = i32(0)

    return end_env


def make_start_episode(
    ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus, condition: DeviceFunction
) -> DeviceFunction:
    """`start_episode(b, w, e, k, i, clock)`: an agent's first state of an episode that begins in this step.

    If another kernel writes final observations, the last state is saved for it.

    Args:
        ctx: the context.
        access: the functions for the state.
        status: the functions for the episodes.
        condition: `condition(w, k)` -> whether an episode begins in the env in place k of the block.
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


def make_store_env(access: StateAccess) -> DeviceFunction:
    """`store_env(b, w, e, k, clock)`: stores the scalars of an env, which `access` reaches."""
    store_scalars = access.store_scalars

    @inline_function
    def store_env(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        store_scalars(b, w, e, k)

    return store_env


def make_store_agent(access: StateAccess) -> DeviceFunction:
    """`store_agent(b, w, e, k, i, clock)`: stores an agent's state from shared memory, which `access` reaches."""
    store_to_global = access.store_to_global

    @inline_function
    def store_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        store_to_global(b, w, e, k, i)

    return store_agent
