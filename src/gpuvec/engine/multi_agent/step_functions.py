"""The functions of the segments of a step of many agents: loads, phases, rewards, and stores.

`episode_transitions` has the functions of the segments between rewards and stores, in which episodes end.

Letters: e an env, k its index in the block, i an agent of the env, v the index of that agent in the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuvec.engine.compiler.block_copies import BlockCopy, WordType
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, Work
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.episode_status import EpisodeStatus
from gpuvec.engine.multi_agent.phase_functions import make_phase_element, make_step_segment, unit_of_set
from gpuvec.engine.multi_agent.segments import Segment
from gpuvec.engine.multi_agent.state_access import StateAccess
from gpuvec.engine.multi_agent.state_layout import (
    AWAITS_RESET,
    CLOCK,
    COUNTERS,
    RNG_STREAM,
    START,
    TIME,
    VOTES_AGAINST,
)
from gpuvec.engine.multi_agent.unrolled_copies import copy_segments
from gpuvec.phases import Assign, Each
from gpuvec.random import Key

f32, i32, i64, u32, u64, b1 = np.float32, np.int32, np.int64, np.uint32, np.uint64, np.bool_


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
        return step_key(w, k, u32(w.status[k, START]), w.status[k, TIME])  # type: ignore[no-any-return]  # a Key

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
