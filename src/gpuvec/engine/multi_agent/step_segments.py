"""The segments of a step and of a reset of many agents: loads, phases, rewards, the end and the start of episodes, and stores.

The functions at module level are compiled by `bind` for one program, with the values of `step_values`.

Letters: A agents per env, e an env, k its index in the block, i an agent of the env, v the index of that agent in the batch, c
the number of an element of a set, n an action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.block_copies import BlockCopy, WordType
from gpuvec.engine.compiler.dtypes import b1, f32, i32, i64, u32
from gpuvec.engine.compiler.functions import bind, device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import Batch, DeviceFunction, EnvParams, ResetRequest, Work
from gpuvec.engine.layout.declared_schema import METRIC_KINDS
from gpuvec.engine.layout.episode_rules import (
    awaits_reset,
    elapsed_steps,
    is_truncated,
    next_start,
    report_missing_reset,
    rule_values,
)
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.observation_stores import episode_time, last_or_current_time
from gpuvec.engine.multi_agent.phase_functions import make_phase_element, reduction_segments
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
    copy_segments,
    pool_element,
    pool_scalars,
)
from gpuvec.phases import Reduction
from gpuvec.random import Key


class AuthorFunctions(NamedTuple):
    """The author's functions of agents, compiled; in place of a missing one is `every_agent`, and flags keep it unused."""

    reset: DeviceFunction  # reset(i, s, key, p); if `reset` is a tuple of phases, nothing calls it
    reward: DeviceFunction  # reward(i, s, t, p)
    terminated: DeviceFunction  # terminated(i, s, p): an agent's vote
    active: DeviceFunction  # active(i, s, p)
    to_move: DeviceFunction  # to_move(s, p)


# What the functions below read, as `step_values` returns it; and for single segments: `condition(w, k)`, whether it runs in env
# k, `element(b, w, e, k, c, key, p)`, what it runs, and the key of its draws; whether the start of an episode saves the last
# state; how components of long actions and action masks are stored.
ctx: Any = None
author: Any = None
ops: Any = None
set_pool_scalars: Any = None
condition: Any = None
key_of: Any = None
element: Any = None
store_component: Any = None
mask_of: Any = None
is_allowed: Any = None
same_step, next_step, validate = False, False, False
stages_state, stages_active, stages_actions, stages_final, splits, saves_final = False, False, False, False, False, False
has_turns, has_pool, has_pool_scalars, one_reward_per_env = False, False, False, False


def step_values(ctx: MultiAgentContext) -> dict[str, Any]:
    """Returns the values with which `bind` compiles the functions of a program.

    Args:
        ctx: the context.
    """
    env, scalars = ctx.env, pool_scalars(ctx)
    functions = (env.reset if callable(env.reset) else None, env.reward, env.terminated, env.active, env.to_move)
    author = AuthorFunctions(*(every_agent if function is None else device_function(function) for function in functions))
    return rule_values(ctx.options, ctx.ops) | {
        "ctx": ctx,
        "author": author,
        "set_pool_scalars": scalars or every_agent,
        "has_pool": bool(ctx.options.pool),
        "has_pool_scalars": scalars is not None,
        "has_turns": ctx.schema.has_turns,
        "one_reward_per_env": ctx.options.reward != "agents",
        "splits": ctx.launch.split,
        "stages_state": ctx.launch.stage_state,
        "stages_active": ctx.stages_active,
        "stages_actions": ctx.stages_actions and ctx.actions.store_component is None,
        "stages_final": ctx.num_final_copies > 0,
    }


# The status of the episodes in the envs of a block.


def is_waiting(w: Work, k: int) -> bool:
    """Returns whether the episode of env k ended in the last step, so that the env awaits its reset."""
    return not same_step and w.status[k, AWAITS_RESET] != i32(0)


def is_running(w: Work, k: int) -> bool:
    """Returns whether the episode of env k did not end in the last step."""
    return not is_waiting(w, k)


def is_new_episode(w: Work, k: int) -> bool:
    """Returns whether the last episode ended in this step, or a reset was requested."""
    return bool(w.status[k, HAS_ENDED] != i32(0))


def current_clock(w: Work, k: int) -> int:
    """Returns the clock of this step, uint32."""
    # With the clock in a register, every thread would wait for its load, so it is read from shared memory.
    return u32(w.status[k, CLOCK])


def episode_key(w: Work, k: int, start: int, t: int) -> Key:
    """Returns the key of step t of the episode that began at clock `start`."""
    # `load_env` has loaded the stream, because the first draw of a step would wait for it.
    seed, high, row = u32(w.status[k, RNG_STREAM]), u32(w.status[k, RNG_STREAM + 1]), u32(w.status[k, RNG_STREAM + 2])
    return Key(seed, high, row, u32(start - u32(w.status[k, RNG_STREAM + 3])), i32(t))


def step_key(w: Work, k: int) -> Key:
    """Returns the key of this step."""
    return episode_key(w, k, u32(w.status[k, START]), w.status[k, TIME])


def first_key(w: Work, k: int) -> Key:
    """Returns the key of the first state of an episode that begins in this step."""
    return episode_key(w, k, current_clock(w, k), i32(0))


def clear_counters(w: Work, k: int) -> None:
    """Sets the counters of reductions of env k to 0."""
    for j in range(ctx.num_counters):
        w.status[k, COUNTERS + j], w.best_rank[k, j] = i32(0), i64(0)


def active_flags(b: Batch) -> int:
    """Returns the buffer of which agents were active before the step; without turns it is the mask of the agents that act."""
    if has_turns:
        return b.agent_active
    return b.agent_mask


# The functions of the segments of a step, in their order.


def load_env(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Loads the data of a whole env at the beginning of a step."""
    start = ops.load(b.start, e, u32)
    t = elapsed_steps(clock, start)
    w.status[k, CLOCK], w.status[k, START], w.status[k, TIME] = i32(clock), i32(start), t
    w.status[k, AWAITS_RESET] = awaits_reset(t)
    words = ctx.rng_streams.load(b, e)
    for j in range(4):
        w.status[k, RNG_STREAM + j] = i32(words[j])
    w.status[k, VOTES_AGAINST] = i32(0)
    clear_counters(w, k)
    ctx.access.load_scalars(b, w, e, k)
    if is_waiting(w, k):
        if next_step:
            ctx.access.clear_scalars(w, k)
        else:
            w.status[k, TIME] = ops.load(b.last_time, e, i32)
            report_missing_reset(b, e)


def load_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Loads an agent's state and action, and stores whether it is active."""
    # It reads no data that another thread writes before the barrier. So it loads `start`, which is written when an episode
    # ends, and not the status of the env.
    v = e * ctx.num_agents + i
    if stages_state:
        ctx.access.load_to_shared(b, w, e, k, i, clock)
    if stages_actions:
        ctx.actions.stage_action(b, w, v, k * ctx.num_agents + i)
    is_acting = not awaits_reset(elapsed_steps(clock, ops.load(b.start, e, u32)))
    is_active = is_acting and author.active(i, ctx.access.state(b, w, e, k), ctx.params(b, e))
    ops.store(active_flags(b), v, is_active, b1)
    if stages_active:
        w.was_active[k * ctx.num_agents + i] = is_active
    if validate and not has_turns and is_active:
        ctx.actions.report_invalid_action(b, v)


def mark_acting(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Removes waiting agents from the mask of those that act, if agents take turns.

    It follows the loads, since whose turn it is may depend on any part of the state.
    """
    v = e * ctx.num_agents + i
    if is_running(w, k):
        mover = author.to_move(ctx.access.state(b, w, e, k), ctx.params(b, e))
        acts = ops.load(b.agent_active, v, b1) and (mover < 0 or mover == i)
        ops.store(b.agent_mask, v, acts, b1)
        if validate and acts:
            ctx.actions.report_invalid_action(b, v)
    else:
        ops.store(b.agent_mask, v, False, b1)


def run_phase(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Runs `element` for element c of a set in a step, in envs that `condition` selects, with draws of `key_of`."""
    if condition(w, k):
        element(b, w, e, k, c, key_of(w, k), ctx.params(b, e))


def score_agent(b: Batch, w: Work, e: int, k: int, i: int, clock: int) -> None:
    """Stores an agent's reward, and whether it became inactive, and counts its vote."""
    v, s, p = e * ctx.num_agents + i, ctx.access.state(b, w, e, k), ctx.params(b, e)
    agent_reward, became_inactive = f32(0.0), False
    if is_running(w, k):
        agent_reward = f32(author.reward(i, s, episode_time(w.status[k, TIME]), p))
        was_active = w.was_active[k * ctx.num_agents + i] if stages_active else ops.load(active_flags(b), v, b1)
        became_inactive = was_active and not author.active(i, s, p)
        if not author.terminated(i, s, p):
            ctx.counters.increment(w.status, k, VOTES_AGAINST)
    if stages_final:
        ctx.access.stage_copy(w, k, i)
    ops.store_streaming(b.agent_terminated, v, became_inactive, b1)
    if one_reward_per_env:
        ops.store(b.agent_reward, v, agent_reward, f32)
    else:
        ops.store_streaming(b.reward, v, agent_reward, f32)


def check_end(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> Any:
    """Returns whether the episode of an env ended, and stores the result."""
    is_terminated = is_running(w, k) and w.status[k, VOTES_AGAINST] == i32(0)
    truncated = is_running(w, k) and is_truncated(w.status[k, TIME])
    has_ended = is_terminated or truncated
    w.status[k, HAS_ENDED] = has_ended
    if stages_final:
        ctx.access.stage_scalars(w, k)
    ops.store_streaming(b.terminated, e, is_terminated, b1)
    ops.store_streaming(b.truncated, e, truncated, b1)
    if one_reward_per_env:
        s, total = ctx.access.state(b, w, e, k), f32(0.0)
        for i in range(ctx.num_agents):
            if ctx.rewarded_role < 0 or ctx.access.role(s, i) == ctx.rewarded_role:
                total += ops.load(b.agent_reward, e * ctx.num_agents + i, f32)
        ops.store_streaming(b.reward, e, total, f32)
    if has_ended:
        ops.store(b.last_time, e, w.status[k, TIME], i32)
    # Without autoreset, the env awaits its reset in the next step as well.
    if has_ended or (is_waiting(w, k) and not next_step):
        ops.store(b.start, e, next_start(current_clock(w, k)), u32)
    if same_step:
        ops.store_streaming(b.final_mask, e, has_ended, b1)
    if next_step and is_waiting(w, k):
        w.status[k, TIME] = i32(0)
    return has_ended


def end_env(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Resets the scalars of an env whose episode ended.

    If another kernel writes the observations, it saves the last values for that kernel.
    """
    if is_new_episode(w, k):
        if splits:
            ctx.access.save_final_scalars(b, w, e, k)
        ctx.access.clear_scalars(w, k)
        w.status[k, TIME] = i32(0)


def start_agent(b: Batch, w: Work, e: int, k: int, i: int, key: Key, p: EnvParams) -> None:
    """Writes the first state of agent i, and before it saves the last one if another kernel writes final observations."""
    if saves_final:
        ctx.access.save_final(b, w, e, k, i, key, p)
    s = ctx.access.state(b, w, e, k)
    author.reset(i, s, key, p)
    if has_pool:
        ctx.access.set_from_pool(b, s, i, key)
    if has_pool_scalars and i == 0:
        set_pool_scalars(b, w, e, k, i, key, p)


def agent_from_pool(b: Batch, w: Work, e: int, k: int, i: int, key: Key, p: EnvParams) -> None:
    """Sets an agent's fields from a random state of the reset pool."""
    ctx.access.set_from_pool(b, ctx.access.state(b, w, e, k), i, key)


def store_mask(b: Batch, w: Work, e: int, k: int, x: int, clock: int) -> None:
    """Stores element x of the action masks of all agents of an env."""
    i, n = ctx.array_ops.divmod_u32(x, ctx.schema.mask_size)
    allowed = is_allowed(i, n, ctx.access.state(b, w, e, k), ctx.params(b, e))
    ops.store_streaming(mask_of(b), e * (ctx.num_agents * ctx.schema.mask_size) + x, allowed, b1)


def store_turn(b: Batch, w: Work, e: int, k: int, c: int, clock: int) -> None:
    """Stores whose turn it is in the next step."""
    ops.store_streaming(b.to_move, e, i32(author.to_move(ctx.access.state(b, w, e, k), ctx.params(b, e))), i32)


# The functions of the segments of a reset.


def reset_env(b: Batch, w: Work, e: int, k: int, c: int, clock: int, r: ResetRequest) -> None:
    """Seeds an env if request r selects it, and loads the data of the whole env."""
    # No thread reads the shared stream in a reset, so the first one may write it.
    if e == 0:
        ctx.rng_streams.set_shared_seed(b, clock, r)
    w.status[k, HAS_ENDED] = ctx.rng_streams.is_selected(b, e, r)
    clear_counters(w, k)
    ctx.access.load_scalars(b, w, e, k)
    if is_new_episode(w, k):
        ctx.rng_streams.begin_episode(b, e, clock, r)
        ctx.access.clear_scalars(w, k)
    w.status[k, TIME] = last_or_current_time(b, e, clock)


def run_in_reset(b: Batch, w: Work, e: int, k: int, c: int, clock: int, r: ResetRequest) -> None:
    """Runs a phase of `reset`, or `start_agent`, for element c in a reset, if request r selects the env."""
    if is_new_episode(w, k):
        element(b, w, e, k, c, ctx.rng_streams.own_key(b, e, u32(clock), i32(0)), ctx.reset_params(b, e, r))


# Segments whose source or number depends on the environment.


def store_long_component(w: Work, number: int, value: float) -> None:
    """Stores component `number` of the long actions of a block in shared memory."""
    store_component(w, number, ctx.array_ops.divmod_u32(number, ctx.schema.action.components)[1], value)


def stage_action_segments(ctx: MultiAgentContext, values: dict[str, Any]) -> list[Segment]:
    """Compiles the segment that copies long actions to shared memory, component by component; none if they are short."""
    if ctx.actions.store_component is None:
        return []
    dtype = ctx.options.action_dtype
    copy = BlockCopy(
        buffer="action",
        env_bytes=ctx.num_agents * ctx.schema.action.components * np.dtype(dtype).itemsize,
        word=WordType(dtype),
        # Validation reads each action a second time, so a load must not mark it for early eviction from the cache.
        evict_first=not ctx.options.validate,
    )
    return copy_segments(ctx, [copy], bind(store_long_component, **values, store_component=ctx.actions.store_component))


def start_segments(ctx: MultiAgentContext, values: dict[str, Any], starts: DeviceFunction, *, in_reset: bool) -> list[Segment]:
    """Compiles the segments of the phases of `reset`, and then those that set fields from the reset pool.

    Args:
        ctx: the context.
        values: the values for `bind`, with `condition`.
        starts: the condition `starts(w, k)` as a compiled function.
        in_reset: whether they are segments of a reset; otherwise of a step.
    """

    def segment(unit: int, element: DeviceFunction, num_elements: int) -> Segment:
        run = bind(run_in_reset if in_reset else run_phase, **values, key_of=first_key, element=element)
        return Segment(unit, run, takes_request=in_reset, num_elements=num_elements)

    segments: list[Segment] = []
    for number, phase in enumerate(ctx.reset_phases):
        if isinstance(phase, Reduction):
            segments += reduction_segments(ctx, phase, ctx.counter_of_phase(len(ctx.env.phases) + number), starts)
            continue
        unit, count, element = make_phase_element(ctx, phase, has_action=False)
        segments.append(segment(unit, element, count))
    if ctx.options.pool:
        segments.append(segment(AGENTS, bind(agent_from_pool, **values), 0))
        pooled = {field: buffer for field, buffer in ctx.schema.set_fields.items() if field in ctx.options.pool}
        segments += [segment(AGENTS, pool_element(ctx, field), int(np.prod(b.shape))) for field, b in pooled.items()]
        if values["has_pool_scalars"]:
            segments.append(segment(AGENTS, values["set_pool_scalars"], 1))
    return segments


def metric_segments(ctx: MultiAgentContext, values: dict[str, Any]) -> list[Segment]:
    """Compiles the segment that combines metrics with those of the earlier steps of the episode; none without metrics."""
    if ctx.env.metrics is None:
        return []
    kinds = ctx.schema.metrics
    source = "def update_metrics(b, w, e, k, c, clock):\n    if is_running(w, k):\n"
    source += f"        time = w.status[k, {TIME}]\n        values = metrics(state(b, w, e, k), params(b, e))\n"
    for m, (name, kind) in enumerate(kinds.items()):
        source += f"        old, value = load(b.metric_state, e * {len(kinds)} + {m}, f32), f32(values[{m}])\n"
        source += f"        new = value if time == 1 else {METRIC_KINDS[kind]}\n"
        source += f"        store(b.metric_state, e * {len(kinds)} + {m}, new, f32)\n"
        result = "new / f32(time)" if kind == "mean" else "new"
        source += f"        store_streaming(b.metric_{name}, e, {result}, f32)\n"
    scope = {"metrics": device_function(ctx.env.metrics), "state": ctx.access.state, "params": ctx.params, "f32": f32}
    scope |= {"load": ctx.ops.load, "store": ctx.ops.store, "store_streaming": ctx.ops.store_streaming}
    source += "    else:\n" + "".join(f"        store_streaming(b.metric_{name}, e, f32(0.0), f32)\n" for name in kinds)
    running = bind(is_running, **values)
    update = inline_function(generate_function("update_metrics", source, **scope, is_running=running))
    return [Segment(ENVS, update, barrier=False)]


def mask_segments(ctx: MultiAgentContext, values: dict[str, Any]) -> list[Segment]:
    """Compiles the segment that stores the masks of all agents for the next step; none without a function `allowed`.

    Args:
        ctx: the context of all agents, or of one role.
        values: the values for `bind`.
    """
    if ctx.schema.mask_size == 0:
        return []
    assert ctx.env.allowed is not None, "an environment with masks has this function"
    space, masked, first = ctx.schema.action_space, ctx.schema.masked_components, 0
    scope = {"allowed": device_function(ctx.env.allowed), "i32": i32}
    # `is_allowed(i, n, s, p)`: whether agent i may choose the action at position n of its mask. The author's function receives
    # the action, or the pair (component, value) of a MultiDiscrete action.
    source, action = "def is_allowed(i, n, s, p):\n", "def action_of_number(n):\n"
    if masked is not None:
        # Positions of other components are compared with the bounds of those with masks alone.
        for component in masked:
            first, size = int(space.nvec[:component].sum()), int(space.nvec[component])
            source += f"    if {first} <= n < {first + size}:\n        pair = i32({component}), i32(n - {first} + "
            source += f"{int(space.start[component])})\n        return allowed(i, pair, s, p)\n"
        source += "    return True\n"
    elif isinstance(space, gym.spaces.Discrete):
        action += f"    return i32(n + {int(space.start)})\n"
    else:
        assert isinstance(space, gym.spaces.MultiDiscrete), "a Box has no masks"
        for component, (size, start) in enumerate(zip(space.nvec.tolist(), space.start.tolist(), strict=True)):
            action += f"    if n < {first + size}:\n        return i32({component}), i32(n - {first} + {start})\n"
            first += size
        action += f"    return i32({len(space.nvec) - 1}), i32(0)\n"
    if masked is None:
        scope["action_of_number"] = inline_function(generate_function("action_of_number", action, i32=i32))
        source += "    return allowed(i, action_of_number(n), s, p)\n"
    is_allowed = inline_function(generate_function("is_allowed", source, **scope))
    mask_of = inline_function(generate_function("mask_of", f"def mask_of(b):\n    return b.action_mask{ctx.schema.suffix}\n"))
    store = bind(store_mask, **{**values, "ctx": ctx}, mask_of=mask_of, is_allowed=is_allowed)
    return [Segment(AGENTS, store, barrier=False, num_elements=ctx.num_agents * ctx.schema.mask_size)]
