"""Why compiled play crashed or did not return: its last states, played again as plain Python, show the line."""

from __future__ import annotations

from typing import Any, NoReturn

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.random import Key
from gpuvec.spec import Environment, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import Run, action_of, stepping
from gpuvec.testing.compiled_runs.run_moments import Moment, Moments
from gpuvec.testing.races.race_check import RaceCheck
from gpuvec.testing.reference.checked_arrays import checked_value, watched
from gpuvec.testing.reference.checked_draws import CheckedKey, recorded_draws
from gpuvec.testing.reference.checked_functions import CheckedFunctions
from gpuvec.testing.reference.python_reference import checked_parameters, plainly
from gpuvec.testing.worker_process import WorkerError


def explain(env: Environment, run: Run | None, error: WorkerError, num_envs: int, seed: int, time_limit: float) -> NoReturn:
    """Raises what is wrong in the function during which the process that played ended.

    Args:
        env: the environment.
        run: the results before; None if there are none.
        error: how the process ended.
        num_envs: E.
        seed: of the rows.
        time_limit: CPU seconds that a call might take.

    Raises:
        AuthoringError: always; with the line if plain Python shows it too, else with the function.
    """
    moments = Moments(run, seed) if run is not None else None
    ended = f"does not return within {time_limit:g} s of CPU time" if error.out_of_time else f"ends the process: {error}"
    what = f"compiled code of the environment, with which this function begins, {ended}"
    if moments is not None and len(moments.run.obs) > len(moments.run.actions):
        raise authoring_error(
            stepping(env), f"{what}, among {2 * num_envs} environments and not among {num_envs}; check more with num_envs"
        )
    play = _single(env) if isinstance(env, SingleAgentEnv) else _cooperative(env, seed, moments)
    for row in range(num_envs):
        key = Key(seed & 0xFFFFFFFF, seed >> 32, row, 0, 0)
        play(Moment(0, row, key, {}, {}, None, 1) if moments is None else moments.following(row))
    function = env.reset if moments is None else stepping(env)
    when = "in the first reset" if moments is None else f"in step {len(moments.run.obs)}"
    raise authoring_error(
        function, f"{what}, {when}; plain Python does not. Look for a loop, or an index, that depends on rounding"
    )


def _single(env: SingleAgentEnv) -> Any:
    checked, p = CheckedFunctions().environment(env), checked_parameters(env.params)

    def play(m: Moment) -> None:
        key = CheckedKey(*m.key)
        with recorded_draws():
            if m.key.step == 0:
                after = plainly(checked.reset, key, p)
            else:
                before = watched(env.state(*(m.before[k].item() for k in env.state._fields)))
                after, _, _ = plainly(checked.step, before, checked_value(action_of(m.action)), key, p)
        plainly(checked.observe, watched(after), p)

    return play


def _cooperative(env: Any, seed: int, moments: Moments | None) -> Any:
    race_check = RaceCheck(env, moments.following(0).limit if moments is not None else 1, seed)

    def play(m: Moment) -> None:
        if m.key.step == 0:
            race_check.reset_from(m.before, CheckedKey(*m.key))
        else:
            race_check.step_from(m.before, m.action, m.key)

    return play
