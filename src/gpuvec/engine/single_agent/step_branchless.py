"""A step without branches, for rollouts of few envs on a GPU: what only some envs need is computed for all, and then selected.

A warp that is alone on its scheduler waits for each result of the author's step, one after the other. The first state of an
episode depends only on the key, and the key of an episode that begins in this step has this clock. So the first state is
computed during those waits. With a branch it would be computed before or after them, in nearly every warp for some env.

The author's step is also computed for an env that awaits its reset, and its result is discarded.
"""

from __future__ import annotations

from typing import Any

from gpuvec.engine.compiler.dtypes import f32, u32
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.types import Action, Batch, DeviceFunction, EnvParams, EnvState, RngStream
from gpuvec.engine.single_agent.env_access import EnvAccess
from gpuvec.engine.single_agent.env_functions import EnvFunctions
from gpuvec.engine.single_agent.episode_rules import EpisodeRules
from gpuvec.engine.single_agent.field_access import make_selections
from gpuvec.engine.single_agent.step import make_step


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
