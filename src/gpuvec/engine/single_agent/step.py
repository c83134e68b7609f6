"""A reset and a step of one env with one agent, composed of the author's functions and the rules of an episode.

The code is the same for all devices: `ops` has the operations on buffers. A kernel of one step calls `load_env`, `step`,
`store_env` and `store_outputs`; a rollout calls `step` and `store_outputs` many times in between.
"""

from __future__ import annotations

from typing import Any

from gpuvec.engine.compiler.dtypes import b1, f32, i32, u32
from gpuvec.engine.compiler.functions import bind
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, EnvParams, EnvState, ResetRequest, RngStream, Row
from gpuvec.engine.layout.buffer_layout import KernelSpec
from gpuvec.engine.layout.episode_rules import awaits_reset, elapsed_steps, is_truncated, next_start, report_missing_reset
from gpuvec.engine.single_agent.env_functions import (
    env_values,
    first_state,
    key,
    load_env,
    make_env_functions,
    new_state,
    set_start,
    store_env,
    store_final,
)

# What the functions below read, as in `env_functions`; `selections` is the result of `make_selections`. `bind` compiles them
# with values in place of these, and for some callers with other functions in place of `action`, `env_step` and `step`.
ops: Any = None
functions: Any = None
rng_streams: Any = None
selections: Any = None
same_step, next_step, validate = False, False, False


def compose_reset_and_step(spec: KernelSpec, ops: MemoryOps) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles a reset and a step of one env, for kernels in which a thread has one env.

    Args:
        spec: what the kernels are compiled from.
        ops: the operations on buffers.

    Returns:
        `reset(b, e, clock, r)` and `step_env(b, e, clock)`.
    """
    values = env_values(make_env_functions(spec, ops), spec.options, ops)
    return bind(reset, **values), bind(step_env, **values)


def reset(b: Batch, e: int, clock: int, r: ResetRequest) -> None:
    """Resets env e if request r selects it, and writes its observation."""
    # No thread reads the shared stream in a reset, so the first one may write it.
    if e == 0:
        rng_streams.set_shared_seed(b, clock, r)
    if rng_streams.is_selected(b, e, r):
        rng_streams.begin_episode(b, e, clock, r)
        own_key = rng_streams.own_key(b, e, u32(clock), i32(0))
        functions.store_state(b, e, new_state(b, own_key, functions.reset_params(b, e, r)))
    ops.store_row(b.obs, e, functions.observe(functions.load_state(b, e), functions.params(b, e)))


def step_env(b: Batch, e: int, clock: int) -> None:
    """Makes step number `clock` of env e, with the action in `b.action`."""
    start, s, stream, p = load_env(b, e)
    start, s, obs, reward, terminated, truncated = step(b, e, e, clock, start, s, stream, p, 0)
    store_env(b, e, start, s)
    store_outputs(b, e, obs, reward, terminated, truncated)


def action(b: Batch, e: int, a: int) -> Action:
    """Loads the action of env e from `b.action`. `a` is of other functions in its place, and 0 here."""
    return functions.load_action(b, e)


def action_argument(b: Batch, e: int, a: Action) -> Action:
    """As `action`, for a caller of `step` that has the action of env `e` in registers; `b` is not read."""
    return a


def env_step(b: Batch, e: int, start: int, t: int, s: EnvState, stream: RngStream, p: EnvParams, a: Action) -> Any:
    """Returns (s, obs, reward, terminated): the author's part of a step."""
    s, reward, terminated = functions.step(s, action(b, e, a), key(b, e, stream, start, t), p)
    s = functions.cast_state(s)
    return s, functions.observe(s, p), f32(reward), bool(terminated)


def step(
    b: Batch, e: int, out_index: int, clock: int, start: int, s: EnvState, stream: RngStream, p: EnvParams, a: Action
) -> Any:
    """Makes a step of one env with the rules of its episode. A rule that few envs need is behind a branch.

    Returns:
        (start, s, obs, reward, terminated, truncated), where `s` is the state and `start` the clock at which the episode began;
        a final observation becomes row `out_index` of `final_obs`.
    """
    t = elapsed_steps(clock, start)
    reward, terminated, truncated = f32(0.0), False, False
    if awaits_reset(t):
        if next_step:
            s = first_state(b, e, stream, start, p)
        else:  # DISABLED
            # The env awaits its reset in the next step as well.
            start = set_start(b, e, next_start(clock))
            report_missing_reset(b, e)
        obs = functions.observe(s, p)
    else:
        if validate:
            functions.report_invalid_action(b, e)
        s, obs, reward, terminated = env_step(b, e, start, t, s, stream, p, a)
        truncated = is_truncated(t)
        ended = terminated or truncated
        store_final(b, out_index, ended, obs)
        if ended:
            start = set_start(b, e, next_start(clock))
            if same_step:
                s = first_state(b, e, stream, start, p)
                obs = functions.observe(s, p)
    return start, s, obs, reward, terminated, truncated


def step_branchless(
    b: Batch, e: int, out_index: int, clock: int, start: int, s: EnvState, stream: RngStream, p: EnvParams, a: Action
) -> Any:
    """As `step` with autoreset, for rollouts of few envs on a GPU: what only some envs need is computed for all, and selected.

    A warp that is alone on its scheduler waits for each result of the author's step, one after the other. The first state of an
    episode depends only on the key, and the key of an episode that begins in this step has this clock. So the first state is
    computed during those waits. With a branch it would be computed before or after them, in nearly every warp for some env.
    The author's step is also computed for an env that awaits its reset, and its result is discarded.
    """
    t = elapsed_steps(clock, start)
    is_waiting = awaits_reset(t)
    first_s = first_state(b, e, stream, u32(clock), p)
    if validate and not is_waiting:
        functions.report_invalid_action(b, e)
    s, obs, reward, terminated = env_step(b, e, start, t, s, stream, p, a)
    terminated, truncated = terminated and not is_waiting, is_truncated(t) and not is_waiting
    ended = terminated or truncated
    store_final(b, out_index, ended, obs)
    starts_episode = ended if same_step else is_waiting
    s = selections.state(starts_episode, first_s, s)
    obs = selections.obs(starts_episode, functions.observe(first_s, p), obs)
    start = next_start(clock) if ended else u32(start)
    return start, s, obs, f32(0.0) if is_waiting else reward, terminated, truncated


def store_outputs(b: Batch, out_index: int, obs: Row, reward: float, terminated: bool, truncated: bool) -> None:
    """Writes row `out_index` of the outputs."""
    ops.store_row_streaming(b.obs, out_index, obs)
    ops.store_streaming(b.reward, out_index, reward, f32)
    ops.store_streaming(b.terminated, out_index, terminated, b1)
    ops.store_streaming(b.truncated, out_index, truncated, b1)
