"""The segments of a step and of a reset of many agents: loads, phases, rewards, the end and the start of episodes, and stores.

Letters: e an env, k its index in the block, i an agent of the env, v the index of that agent in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.copy_types import BlockCopy, WordType
from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64, u32, u64
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, EnvState, ResetRequest, Work
from gpuvec.engine.layout.declared_schema import METRIC_KINDS
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.phases import make_phase_element, make_step_segment, reduction_segments, unit_of_set
from gpuvec.engine.multi_agent.segments import AGENTS, ENVS, Segment
from gpuvec.engine.multi_agent.state_access import (
    AWAITS_RESET,
    CLOCK,
    COUNTERS,
    HAS_ENDED,
    RNG_STREAM,
    START,
    TIME,
    VOTES_AGAINST,
    StateAccess,
    copy_segments,
    pool_element,
    pool_scalars,
)
from gpuvec.phases import Assign, Each, Reduction
from gpuvec.random import Key

# The status of the episodes in the envs of a block: running, ended, or awaiting a reset; and the start of an episode.
#
# Letters: e an env, k its index in the block, i an agent of the env.


class EpisodeStatus(NamedTuple):
    """The compiled functions of one context; `b` is the batch, `w` the work."""

    awaits_reset: DeviceFunction  # awaits_reset(w, k) -> whether the episode of env k ended in the last step
    is_running: DeviceFunction  # is_running(w, k) -> whether it did not end then
    is_new_episode: DeviceFunction  # is_new_episode(w, k) -> whether the last one ended in this step, or a reset was requested
    current_clock: DeviceFunction  # current_clock(w, k) -> the clock of this step, uint32
    step_key: DeviceFunction  # step_key(w, k, start, t) -> the Key of step t of the episode that began at clock `start`
    start_agent: DeviceFunction  # start_agent(b, w, e, k, i, key, p): writes the first state of agent i


def make_episode_status(ctx: MultiAgentContext, access: StateAccess) -> EpisodeStatus:
    """Compiles the functions for a context `ctx`, whose state `access` reads and writes."""
    same_step = ctx.same_step

    @inline_function
    def awaits_reset(w: Work, k: int) -> bool:
        return not same_step and w.status[k, AWAITS_RESET] != i32(0)

    @inline_function
    def is_running(w: Work, k: int) -> bool:
        return not awaits_reset(w, k)

    @inline_function
    def is_new_episode(w: Work, k: int) -> bool:
        return bool(w.status[k, HAS_ENDED] != i32(0))

    @inline_function
    def current_clock(w: Work, k: int) -> int:
        # With the clock in a register, every thread would wait for its load, so it is read from shared memory.
        return u32(w.status[k, CLOCK])

    @inline_function
    def step_key(w: Work, k: int, start: int, t: int) -> Key:
        # `load_env` has loaded the stream, because the first draw of a step would wait for it.
        seed, high, row = u32(w.status[k, RNG_STREAM]), u32(w.status[k, RNG_STREAM + 1]), u32(w.status[k, RNG_STREAM + 2])
        return Key(seed, high, row, u32(start - u32(w.status[k, RNG_STREAM + 3])), i32(t))

    start_agent = _make_start_agent(ctx, access)
    return EpisodeStatus(awaits_reset, is_running, is_new_episode, current_clock, step_key, start_agent)


def _make_start_agent(ctx: MultiAgentContext, access: StateAccess) -> DeviceFunction:
    """`start_agent` as in `EpisodeStatus`, for steps and resets."""
    has_pool = bool(ctx.options.pool)
    # If `reset` is a tuple of phases, other segments start an episode, and nothing calls this function.
    reset: DeviceFunction = device_function(ctx.env.reset) if callable(ctx.env.reset) else every_agent
    state, set_from_pool = access.state, access.set_from_pool
    scalars_from_pool = pool_scalars(ctx, access)
    has_pool_scalars, set_scalars = scalars_from_pool is not None, scalars_from_pool or every_agent

    @inline_function
    def start_agent(b: Batch, w: Work, e: int, k: int, i: int, key: Key, p: EnvParams) -> None:
        s = state(b, w, e, k)
        reset(i, s, key, p)
        if has_pool:
            set_from_pool(b, s, i, key)
        if has_pool_scalars and i == 0:
            set_scalars(b, w, e, k, i, key, p)

    return start_agent


def make_counter_reset(ctx: MultiAgentContext) -> DeviceFunction:
    """Compiles `clear_counters(w, k)`, which sets the counters of reductions of env k to 0, for a context `ctx`."""
    num_counters = ctx.num_counters

    @inline_function
    def clear_counters(w: Work, k: int) -> None:
        for j in range(num_counters):
            w.status[k, COUNTERS + j], w.best_rank[k, j] = i32(0), i64(0)

    return clear_counters


def make_load_env(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> DeviceFunction:
    """Compiles `load_env(b, w, e, k, clock)`, which loads the data of a whole env at the beginning of a step.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
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


def stage_action_segments(ctx: MultiAgentContext) -> list[Segment]:
    """Compiles the segment that copies long actions to shared memory, component by component; none if they are short.

    Args:
        ctx: the context.
    """
    store_component, dtype = ctx.actions.store_component, ctx.options.action_dtype
    if store_component is None:
        return []
    K, divmod_u32 = ctx.schema.action.components, ctx.array_ops.divmod_u32

    @inline_function
    def store(w: Work, number: int, component: float) -> None:
        store_component(w, number, divmod_u32(number, K)[1], component)

    copy = BlockCopy(
        buffer="action",
        env_bytes=ctx.num_agents * K * np.dtype(dtype).itemsize,
        word=WordType(dtype),
        # Validation reads each action a second time, so a load must not mark it for early eviction from the cache.
        evict_first=not ctx.options.validate,
    )
    return copy_segments(ctx, [copy], store)


def make_active_flags(ctx: MultiAgentContext) -> DeviceFunction:
    """Compiles `active_flags(b)`, the buffer of which agents were active before the step, for a context `ctx`.

    Without turns it is the mask of the agents that act.
    """
    name = "agent_active" if ctx.schema.has_turns else "agent_mask"
    return inline_function(generate_function("active_flags", f"def active_flags(b):\n    return b.{name}\n"))


def make_load_agent(ctx: MultiAgentContext, access: StateAccess) -> DeviceFunction:
    """Compiles `load_agent(b, w, e, k, i, clock)`, which loads an agent's state and action, and stores whether it is active.

    Args:
        ctx: the context.
        access: access to the state.
    """
    A, load, store, params = ctx.num_agents, ctx.ops.load, ctx.ops.store, ctx.params
    stage_action, report_invalid_action = ctx.actions.stage_action, ctx.actions.report_invalid_action
    active = device_function(ctx.env.active) if ctx.env.active is not None else every_agent
    state, load_to_shared, stages_active = access.state, access.load_to_shared, ctx.stages_active
    stage_state, same_step, has_turns = ctx.launch.stage_state, ctx.same_step, ctx.schema.has_turns
    stages_action = ctx.stages_actions and ctx.actions.store_component is None
    validate = ctx.options.validate and not has_turns
    active_flags = make_active_flags(ctx)

    @inline_function
    def load_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        # It reads no data that another thread writes before the barrier. So it loads `start`, which is written when an episode
        # ends, and not the status of the env.
        v = e * A + i
        if stage_state:
            load_to_shared(b, w, e, k, i)
        if stages_action:
            stage_action(b, w, v, k * A + i)
        start = load(b.start, e, u32)
        is_active = (same_step or start != u32(clock)) and active(i, state(b, w, e, k), params(b, e))
        store(active_flags(b), v, is_active, b1)
        if stages_active:
            w.was_active[k * A + i] = is_active
        if validate and is_active:
            report_invalid_action(b, v)

    return load_agent


def phase_segment(
    ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus, phase: Each | Assign | Callable[..., None]
) -> Segment:
    """Compiles the segment of a phase that is no reduction, which runs if the episode is running.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
        phase: the phase.
    """
    index_set, element = make_phase_element(ctx, access, phase, has_action=True)
    step_key = status.step_key

    @inline_function
    def key_of(w: Work, k: int) -> Key:
        return step_key(w, k, u32(w.status[k, START]), w.status[k, TIME])

    unit, count = unit_of_set(ctx, index_set)
    return make_step_segment(ctx, unit, element, status.is_running, key_of)._replace(num_elements=count)


def make_score_agent(
    ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus, episode_time: DeviceFunction
) -> DeviceFunction:
    """Compiles `score_agent(b, w, e, k, i, clock)`: an agent's reward, its vote, and whether it became inactive.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
        episode_time: `episode_time` of `ObservationFeatures`.
    """
    A, load, store, store_streaming = ctx.num_agents, ctx.ops.load, ctx.ops.store, ctx.ops.store_streaming
    reward, vote, params = device_function(ctx.env.reward), device_function(ctx.env.terminated), ctx.params
    active = device_function(ctx.env.active) if ctx.env.active is not None else every_agent
    state, stage_copy, stages_final = access.state, access.stage_copy, ctx.num_final_copies > 0
    is_running, increment, stages_active = status.is_running, ctx.counters.increment, ctx.stages_active
    one_reward_per_env = ctx.options.reward != "agents"
    active_flags = make_active_flags(ctx)

    @inline_function
    def score_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        v, s, p = e * A + i, state(b, w, e, k), params(b, e)
        agent_reward, became_inactive = f32(0.0), False
        if is_running(w, k):
            agent_reward = f32(reward(i, s, episode_time(w.status[k, TIME]), p))
            was_active = w.was_active[k * A + i] if stages_active else load(active_flags(b), v, b1)
            became_inactive = was_active and not active(i, s, p)
            if not vote(i, s, p):
                increment(w.status, k, VOTES_AGAINST)
        if stages_final:
            stage_copy(w, k, i)
        store_streaming(b.agent_terminated, v, became_inactive, b1)
        if one_reward_per_env:
            store(b.agent_reward, v, agent_reward, f32)
        else:
            store_streaming(b.reward, v, agent_reward, f32)

    return score_agent


def make_store_env(access: StateAccess) -> DeviceFunction:
    """Compiles `store_env(b, w, e, k, clock)`, which stores the scalars of an env with `access`."""
    store_scalars = access.store_scalars

    @inline_function
    def store_env(b: Batch, w: Work, e: int, k: int, clock: int) -> None:
        store_scalars(b, w, e, k)

    return store_env


def make_store_agent(access: StateAccess) -> DeviceFunction:
    """Compiles `store_agent(b, w, e, k, i, clock)`, which stores an agent's state from shared memory with `access`."""
    store_to_global = access.store_to_global

    @inline_function
    def store_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        store_to_global(b, w, e, k, i)

    return store_agent


# The segments of environments in which agents take turns: who acts in this step, and whose turn it is next.
#
# Letters: A agents per env, e an env, k its index in the block, i an agent.


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


# The segment that combines the metrics of a step with those of the earlier steps of its episode.
#
# Letters: M metrics, e an env, k its index in the block.


def metric_segments(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> list[Segment]:
    """Compiles the segment; none if the environment has no metrics.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
    """
    if ctx.env.metrics is None:
        return []
    kinds = ctx.schema.metrics
    source = "def update_metrics(b, w, e, k, clock):\n    if is_running(w, k):\n"
    source += f"        time = w.status[k, {TIME}]\n        values = metrics(state(b, w, e, k), params(b, e))\n"
    for m, (name, kind) in enumerate(kinds.items()):
        source += f"        old, value = load(b.metric_state, e * {len(kinds)} + {m}, f32), f32(values[{m}])\n"
        source += f"        new = value if time == 1 else {METRIC_KINDS[kind]}\n"
        source += f"        store(b.metric_state, e * {len(kinds)} + {m}, new, f32)\n"
        result = "new / f32(time)" if kind == "mean" else "new"
        source += f"        store_streaming(b.metric_{name}, e, {result}, f32)\n"
    scope = {"metrics": device_function(ctx.env.metrics), "state": access.state, "params": ctx.params, "f32": f32}
    scope |= {"load": ctx.ops.load, "store": ctx.ops.store, "store_streaming": ctx.ops.store_streaming}
    source += "    else:\n" + "".join(f"        store_streaming(b.metric_{name}, e, f32(0.0), f32)\n" for name in kinds)
    update = inline_function(generate_function("update_metrics", source, **scope, is_running=status.is_running))
    return [Segment(ENVS, update, barrier=False)]


# The action mask of the next step, from the author's function `allowed`.
#
# Letters: A agents per env, N actions of an agent, or the sum of the components' sizes, e an env, k its index in the block, i
# an agent, n an action.


def mask_segments(ctx: MultiAgentContext, access: StateAccess) -> list[Segment]:
    """Compiles the segment that stores the masks of all agents; none if the environment has no function `allowed`.

    Args:
        ctx: the context of all agents, or of one role.
        access: access to the state.
    """
    if ctx.schema.mask_size == 0:
        return []
    A, N, divmod_u32, store_streaming = ctx.num_agents, ctx.schema.mask_size, ctx.array_ops.divmod_u32, ctx.ops.store_streaming
    state, params = access.state, ctx.params
    is_allowed = _make_is_allowed(ctx)
    suffix = ctx.schema.suffix
    mask_of = inline_function(generate_function("mask_of", f"def mask_of(b):\n    return b.action_mask{suffix}\n"))

    @inline_function
    def store_mask(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
        i, n = divmod_u32(x, N)
        store_streaming(mask_of(b), e * (A * N) + x, is_allowed(i, n, state(b, w, e, k), params(b, e)), b1)

    return [Segment(AGENTS, store_mask, barrier=False, num_elements=A * N)]


def _make_is_allowed(ctx: MultiAgentContext) -> DeviceFunction:
    """`is_allowed(i, n, s, p)`: whether agent i may choose the action at position n of its mask."""
    assert ctx.env.allowed is not None, "an environment with masks has this function"
    allowed, action_of_number = device_function(ctx.env.allowed), _make_action_of_number(ctx.schema.action_space)
    if ctx.schema.masked_components is None:

        @inline_function
        def is_allowed(i: int, n: int, s: EnvState, p: EnvParams) -> bool:
            return allowed(i, action_of_number(n), s, p)

        return is_allowed
    # Positions of other components are compared with the bounds of those with masks alone.
    space = ctx.schema.action_space
    source = "def is_allowed(i, n, s, p):\n"
    for component in ctx.schema.masked_components:
        first, size = int(space.nvec[:component].sum()), int(space.nvec[component])
        source += f"    if {first} <= n < {first + size}:\n"
        source += f"        return allowed(i, (i32({component}), i32(n - {first} + {int(space.start[component])})), s, p)\n"
    source += "    return True\n"
    return inline_function(generate_function("is_allowed", source, allowed=allowed, i32=np.int32))


def _make_action_of_number(space: gym.Space[Any]) -> DeviceFunction:
    """`action_of_number(n)`: the action at position n of a mask, or the pair (component, value) of a MultiDiscrete action."""
    source = "def action_of_number(n):\n"
    if isinstance(space, gym.spaces.Discrete):
        source += f"    return i32(n + {int(space.start)})\n"
    else:
        assert isinstance(space, gym.spaces.MultiDiscrete), "a Box has no masks"
        first = 0
        for component, (size, start) in enumerate(zip(space.nvec.tolist(), space.start.tolist(), strict=True)):
            source += f"    if n < {first + size}:\n        return i32({component}), i32(n - {first} + {start})\n"
            first += size
        source += f"    return i32({len(space.nvec) - 1}), i32(0)\n"
    return inline_function(generate_function("action_of_number", source, i32=np.int32))


# The functions of the segments in which episodes of many agents end and the next ones start.
#
# Letters: e an env, k its index in the block, i an agent of the env.


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


# The segments that write the first state of an episode if `reset` is a tuple of phases, in a step and in a reset.
#
# Letters: e an env, k its index in the block, c the number of an element.


# wrap(unit, element) -> Segment, for `element(b, w, e, k, c, key, p)`
WrapElement = Callable[[int, DeviceFunction], Segment]


def start_segments(ctx: MultiAgentContext, access: StateAccess, condition: DeviceFunction, wrap: WrapElement) -> list[Segment]:
    """Compiles the segments of the phases of `reset`, and then those that set fields from the reset pool.

    Args:
        ctx: the context.
        access: access to the state.
        condition: `condition(w, k)` -> whether an episode begins in env k of the block.
        wrap: `in_step` or `in_reset`.
    """
    segments: list[Segment] = []
    for number, phase in enumerate(ctx.reset_phases):
        if isinstance(phase, Reduction):
            segments += reduction_segments(ctx, access, phase, ctx.reset_counter(number), condition)
            continue
        index_set, element = make_phase_element(ctx, access, phase, has_action=False)
        unit, count = unit_of_set(ctx, index_set)
        segments.append(wrap(unit, element)._replace(num_elements=count))
    return segments + _pool_segments(ctx, access, wrap)


def _pool_segments(ctx: MultiAgentContext, access: StateAccess, wrap: WrapElement) -> list[Segment]:
    """The segments that set fields from a random state of the reset pool."""
    if not ctx.options.pool:
        return []
    state, set_from_pool = access.state, access.set_from_pool

    @inline_function
    def agent_from_pool(b: Batch, w: Work, e: int, k: int, i: int, key: Key, p: EnvParams) -> None:
        set_from_pool(b, state(b, w, e, k), i, key)

    segments = [wrap(AGENTS, agent_from_pool)]
    for field, buffer in access.layout.set_fields.items():
        if field in ctx.options.pool:
            element = pool_element(ctx, access, field)
            segments.append(wrap(AGENTS, element)._replace(num_elements=int(np.prod(buffer.shape))))
    if (scalars := pool_scalars(ctx, access)) is not None:
        segments.append(wrap(AGENTS, scalars)._replace(num_elements=1))
    return segments


def in_step(ctx: MultiAgentContext, status: EpisodeStatus, condition: DeviceFunction) -> WrapElement:
    """Returns the function that makes segments of a step from compiled elements.

    Args:
        ctx: the context.
        status: the status of the episodes.
        condition: `condition(w, k)` -> whether an episode begins in env k of the block.
    """
    step_key, current_clock = status.step_key, status.current_clock

    @inline_function
    def key_of(w: Work, k: int) -> Key:
        return step_key(w, k, current_clock(w, k), i32(0))

    return lambda unit, element: make_step_segment(ctx, unit, element, condition, key_of)


def in_reset(ctx: MultiAgentContext, status: EpisodeStatus) -> WrapElement:
    """Returns the function that makes segments of a reset from compiled elements.

    Args:
        ctx: the context.
        status: the status of the episodes.
    """
    own_key, reset_params, is_new_episode = ctx.rng_streams.own_key, ctx.reset_params, status.is_new_episode

    def wrap(unit: int, element: DeviceFunction) -> Segment:
        @inline_function
        def run(b: Batch, w: Work, e: int, k: int, c: int, clock: int, r: ResetRequest) -> None:
            if is_new_episode(w, k):
                element(b, w, e, k, c, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r))

        @inline_function
        def run_env(b: Batch, w: Work, e: int, k: int, clock: int, r: ResetRequest) -> None:
            run(b, w, e, k, 0, clock, r)

        return Segment(unit, run_env if unit == ENVS else run, takes_request=True)

    return wrap


# The functions of the segments of a reset of many agents, in which envs are seeded and episodes start.


def make_reset_env(ctx: MultiAgentContext, access: StateAccess, status: EpisodeStatus) -> DeviceFunction:
    """Compiles `reset_env(b, w, e, k, clock, r)`: seeds an env if request r selects it, and loads the data of the whole env.

    Args:
        ctx: the context.
        access: access to the state.
        status: the status of the episodes.
    """
    rng_streams, load, clear_counters = ctx.rng_streams, ctx.ops.load, make_counter_reset(ctx)
    set_shared_seed, is_selected, begin_episode = (
        rng_streams.set_shared_seed,
        rng_streams.is_selected,
        rng_streams.begin_episode,
    )
    load_scalars, clear_scalars, is_new_episode = access.load_scalars, access.clear_scalars, status.is_new_episode

    @inline_function
    def reset_env(b: Batch, w: Work, e: int, k: int, clock: int, r: ResetRequest) -> None:
        # No thread reads the shared stream in a reset, so the first one may write it.
        if e == 0:
            set_shared_seed(b, clock, r)
        w.status[k, HAS_ENDED] = is_selected(b, e, r)
        clear_counters(w, k)
        load_scalars(b, w, e, k)
        if is_new_episode(w, k):
            begin_episode(b, e, clock, r)
            clear_scalars(w, k)
        start = load(b.start, e, u32)
        w.status[k, TIME] = load(b.last_time, e, i32) if start == u32(clock + u32(1)) else i32(clock - start)

    return reset_env


def make_load_state(access: StateAccess) -> DeviceFunction:
    """Compiles `load_state(b, w, e, k, i, clock)`, which loads an agent's state to shared memory with `access`."""
    load_to_shared = access.load_to_shared

    @inline_function
    def load_state(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
        load_to_shared(b, w, e, k, i)

    return load_state


def make_reset_agent(ctx: MultiAgentContext, status: EpisodeStatus) -> DeviceFunction:
    """Compiles `reset_agent(b, w, e, k, i, clock, r)`: writes an agent's first state, if request r selects its env.

    Args:
        ctx: the context.
        status: the status of the episodes.
    """
    own_key, reset_params = ctx.rng_streams.own_key, ctx.reset_params
    is_new_episode, start_agent = status.is_new_episode, status.start_agent

    @inline_function
    def reset_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int, r: ResetRequest) -> None:
        if is_new_episode(w, k):
            start_agent(b, w, e, k, i, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r))

    return reset_agent
