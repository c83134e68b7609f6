"""A reset and a step of one env with one agent, composed of the author's functions and the rules of an episode.

The code is the same for all devices: `ops` has the operations on buffers. A kernel of one step calls `load_env`, `step`,
`store_env` and `store_outputs`; a rollout calls `step` and `store_outputs` many times in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from gpuvec.engine.compiler.dtypes import b1, f32, i32, u32
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, EnvParams, EnvState, ResetRequest, RngStream, Row
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.rng_streams import make_rng_streams
from gpuvec.engine.single_agent.env_functions import (
    EnvAccess,
    EnvFunctions,
    access_for_one_step,
    make_env_functions,
    make_selections,
    read_shared_stream_early,
)
from gpuvec.engine.single_agent.episode_rules import EpisodeRules, make_episode_rules
from gpuvec.spec import SingleAgentEnv

# The type of `make_step` and `make_step_branchless`.
MakeStep: TypeAlias = Callable[[EnvFunctions, EpisodeRules, EnvAccess, DeviceFunction], DeviceFunction]


def compose_reset_and_step(
    env: SingleAgentEnv, options: KernelOptions, ops: MemoryOps
) -> tuple[DeviceFunction, DeviceFunction]:
    """Compiles a reset and a step of one env, for kernels in which a thread has one env.

    Args:
        env: the environment.
        options: what the kernels are compiled for.
        ops: the operations on buffers.

    Returns:
        `reset(b, e, clock, r)` as `compose_reset` returns it, and `step(b, e, clock)`, which is step number `clock`.
    """
    functions = make_env_functions(env, options, ops)
    access = access_for_one_step(functions, ops, read_shared_stream_early)
    rules = make_episode_rules(functions, access.key, options, ops)
    env_step = make_env_step(functions, access, action_from_buffer(functions))
    step_env, store_outputs = make_step(functions, rules, access, env_step), make_store_outputs(ops)
    load_env, store_env = access.load_env, access.store_env

    @inline_function
    def step(b: Batch, e: int, clock: int) -> None:
        start, s, stream, p = load_env(b, e)
        start, s, obs, reward, terminated, truncated = step_env(b, e, e, clock, start, s, stream, p, 0)
        store_env(b, e, start, s)
        store_outputs(b, e, obs, reward, terminated, truncated)

    return compose_reset(functions, ops), step


def compose_reset(functions: EnvFunctions, ops: MemoryOps) -> DeviceFunction:
    """Compiles `reset(b, e, clock, r)`: resets env e if request r selects it, and writes its observation.

    Args:
        functions: the functions of the environment.
        ops: the operations on buffers.
    """
    store_row, load_state, store_state = ops.store_row, functions.load_state, functions.store_state
    first_state, observe, params, reset_params = functions.reset, functions.observe, functions.params, functions.reset_params
    *_, own_key, is_selected, begin_episode, set_shared_seed = make_rng_streams(ops)

    @inline_function
    def reset(b: Batch, e: int, clock: int, r: ResetRequest) -> None:
        # No thread reads the shared stream in a reset, so the first one may write it.
        if e == 0:
            set_shared_seed(b, clock, r)
        if is_selected(b, e, r):
            begin_episode(b, e, clock, r)
            store_state(b, e, first_state(b, own_key(b, e, u32(clock), i32(0)), reset_params(b, e, r)))
        store_row(b.obs, e, observe(load_state(b, e), params(b, e)))

    return reset


@inline_function
def action_argument(b: Batch, e: int, a: Action) -> Action:
    """Returns `a`, the action of env `e`, for a caller of `step` that has the action in registers; `b` is not read."""
    return a


def action_from_buffer(functions: EnvFunctions) -> DeviceFunction:
    """Compiles `action(b, e, a)`, which loads the action of env e from `b.action` and ignores `a`.

    Args:
        functions: the functions of the environment.
    """
    load_action = functions.load_action

    @inline_function
    def action(b: Batch, e: int, a: int) -> Action:
        return load_action(b, e)

    return action


def make_env_step(functions: EnvFunctions, access: EnvAccess, action: DeviceFunction) -> DeviceFunction:
    """Compiles `env_step(b, e, start, t, s, stream, p, a)` -> (s, obs, reward, terminated): the author's part of a step.

    Args:
        functions: the functions of the environment.
        access: the function `key` of the env.
        action: `action_argument`, or the result of `action_from_buffer`.
    """
    author_step, cast_state, observe, key = functions.step, functions.cast_state, functions.observe, access.key

    @inline_function
    def env_step(b: Batch, e: int, start: int, t: int, s: EnvState, stream: RngStream, p: EnvParams, a: Action) -> Any:
        s, reward, terminated = author_step(s, action(b, e, a), key(b, e, stream, start, t), p)
        s = cast_state(s)
        return s, observe(s, p), f32(reward), bool(terminated)

    return env_step


def make_step(functions: EnvFunctions, rules: EpisodeRules, access: EnvAccess, env_step: DeviceFunction) -> DeviceFunction:
    """Compiles a step of one env with the rules of its episode. A rule that few envs need is behind a branch.

    It is `step(b, e, out_index, clock, start, s, stream, p, a)` -> (start, s, obs, reward, terminated, truncated), where `s` is
    the state and `start` the clock at which the episode began; a final observation becomes row `out_index` of `final_obs`.

    Args:
        functions: the functions of the environment.
        rules: the rules of its episodes.
        access: the function `set_start` of the env.
        env_step: the author's part of the step, as `make_env_step` returns it.
    """
    observe, first_state, next_start, set_start = functions.observe, rules.first_state, rules.next_start, access.set_start
    elapsed_steps, awaits_reset, is_truncated = rules.elapsed_steps, rules.awaits_reset, rules.is_truncated
    resets_at_end, resets_in_next_step = rules.resets_at_end, rules.resets_in_next_step
    check_action, report_missing_reset, store_final = rules.check_action, rules.report_missing_reset, rules.store_final

    @inline_function
    def step(
        b: Batch, e: int, out_index: int, clock: int, start: int, s: EnvState, stream: RngStream, p: EnvParams, a: Action
    ) -> Any:
        t = elapsed_steps(clock, start)
        reward, terminated, truncated = f32(0.0), False, False
        if awaits_reset(t):
            if resets_in_next_step:
                s = first_state(b, e, stream, start, p)
            else:  # DISABLED
                # The env awaits its reset in the next step as well.
                start = set_start(b, e, next_start(clock))
                report_missing_reset(b, e)
            obs = observe(s, p)
        else:
            check_action(b, e)
            s, obs, reward, terminated = env_step(b, e, start, t, s, stream, p, a)
            truncated = is_truncated(t)
            ended = terminated or truncated
            store_final(b, out_index, ended, obs)
            if ended:
                start = set_start(b, e, next_start(clock))
                if resets_at_end:
                    s = first_state(b, e, stream, start, p)
                    obs = observe(s, p)
        return start, s, obs, reward, terminated, truncated

    return step


def make_store_outputs(ops: MemoryOps) -> DeviceFunction:
    """Compiles `store_outputs(b, out_index, obs, reward, terminated, truncated)`, which writes row `out_index` of the outputs.

    Args:
        ops: the operations on buffers.
    """
    store_streaming, store_row_streaming = ops.store_streaming, ops.store_row_streaming

    @inline_function
    def store_outputs(b: Batch, out_index: int, obs: Row, reward: float, terminated: bool, truncated: bool) -> None:
        store_row_streaming(b.obs, out_index, obs)
        store_streaming(b.reward, out_index, reward, f32)
        store_streaming(b.terminated, out_index, terminated, b1)
        store_streaming(b.truncated, out_index, truncated, b1)

    return store_outputs


# A step without branches, for rollouts of few envs on a GPU: what only some envs need is computed for all, and then selected.
#
# A warp that is alone on its scheduler waits for each result of the author's step, one after the other. The first state of an
# episode depends only on the key, and the key of an episode that begins in this step has this clock. So the first state is
# computed during those waits. With a branch it would be computed before or after them, in nearly every warp for some env.
#
# The author's step is also computed for an env that awaits its reset, and its result is discarded.


def make_step_branchless(
    functions: EnvFunctions, rules: EpisodeRules, access: EnvAccess, env_step: DeviceFunction
) -> DeviceFunction:
    """Compiles a step as `make_step` does, but without branches. Without autoreset it is the step of `make_step`.

    Args:
        functions: the functions of the environment.
        rules: the rules of its episodes.
        access: the access of a rollout, which keeps the start of an episode in registers.
        env_step: the author's part of the step, as `make_env_step` returns it.
    """
    if not (rules.resets_at_end or rules.resets_in_next_step):
        return make_step(functions, rules, access, env_step)
    observe, (select_state, select_obs) = functions.observe, make_selections(functions.env, functions.schema)
    elapsed_steps, awaits_reset, is_truncated = rules.elapsed_steps, rules.awaits_reset, rules.is_truncated
    first_state, next_start, resets_at_end = rules.first_state, rules.next_start, rules.resets_at_end
    check_action, store_final = rules.check_action, rules.store_final

    @inline_function
    def step(
        b: Batch, e: int, out_index: int, clock: int, start: int, s: EnvState, stream: RngStream, p: EnvParams, a: Action
    ) -> Any:
        t = elapsed_steps(clock, start)
        is_waiting = awaits_reset(t)
        first_s = first_state(b, e, stream, u32(clock), p)
        if not is_waiting:
            check_action(b, e)
        s, obs, reward, terminated = env_step(b, e, start, t, s, stream, p, a)
        terminated, truncated = terminated and not is_waiting, is_truncated(t) and not is_waiting
        ended = terminated or truncated
        store_final(b, out_index, ended, obs)
        starts_episode = ended if resets_at_end else is_waiting
        s, obs = select_state(starts_episode, first_s, s), select_obs(starts_episode, observe(first_s, p), obs)
        start = next_start(clock) if ended else u32(start)
        return start, s, obs, f32(0.0) if is_waiting else reward, terminated, truncated

    return step
