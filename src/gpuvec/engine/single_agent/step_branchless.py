"""A step without branches: what few envs need is computed in every step beside what all of them need, and selected.

Rollouts of few envs on a GPU use it.

It is for threads with nothing else to do. A warp that is alone on its scheduler waits for each result of the physics, one after
the other. The first state of an episode depends on its key alone, and if an episode begins in this step its key has this clock:
so it is drawn meanwhile, where a branch would draw it before or afterwards, in nearly every warp for one env or another.

The author's step is computed for an env that awaits its reset too, and its result is discarded (as in `step_blocked`).
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
    """Compiles a step as `make_step` does, without branches where envs are reset: a reset is what is worth a branch.

    Args:
        functions: of the environment.
        rules: of its episodes.
        access: of a rollout, which keeps the start of an episode in registers.
        env_step: env_step(b, e, start, t, s, stream, p, a) -> (s, row, reward, terminated).
    """
    if not (rules.resets_at_end or rules.resets_in_next_step):
        return make_step(functions, rules, access, env_step)
    observe, (select_state, select_row) = functions.observe, make_selections(functions.env, functions.schema)
    elapsed_steps, awaits_reset, is_truncated = rules.elapsed_steps, rules.awaits_reset, rules.is_truncated
    first_state, next_start, resets_at_end = rules.first_state, rules.next_start, rules.resets_at_end
    check_action, store_final = rules.check_action, rules.store_final

    @inline_function
    def step(b: Batch, e: int, at: int, clock: int, start: int, s: EnvState, stream: RngStream, p: EnvParams, a: Action) -> Any:
        t = elapsed_steps(clock, start)
        is_idle = awaits_reset(t)
        fresh = first_state(b, e, stream, u32(clock), p)
        if not is_idle:
            check_action(b, e)
        s, row, reward, terminated = env_step(b, e, start, t, s, stream, p, a)
        terminated, truncated = terminated and not is_idle, is_truncated(t) and not is_idle
        ended = terminated or truncated
        store_final(b, at, ended, row)
        begins = ended if resets_at_end else is_idle
        s, row = select_state(begins, fresh, s), select_row(begins, observe(fresh, p), row)
        start = next_start(clock) if ended else u32(start)
        return start, s, row, f32(0.0) if is_idle else reward, terminated, truncated

    return step
