"""Explains why a compiled run crashed or did not return: plain Python repeats the call and shows the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from gpuvec.engine.compiler.diagnostics import authoring_error, step_function
from gpuvec.phases import first_function
from gpuvec.random import Key
from gpuvec.spec import Environment, MultiAgentEnv, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, author_action
from gpuvec.testing.compiled_runs.run_moments import Moment, RunMoments
from gpuvec.testing.races.race_check import RaceCheck
from gpuvec.testing.reference.checked_draws import CheckedKey, record_draws
from gpuvec.testing.reference.fault_place import fault_place
from gpuvec.testing.reference.single_agent_reference import SingleAgentReference
from gpuvec.testing.worker_process import WorkerError


def explain_crash(
    env: Environment,
    run: CompiledRun | None,
    error: WorkerError,
    num_envs: int,
    seed: int,
    time_limit: float,
    check_run: Callable[[CompiledRun], None],
) -> NoReturn:
    """Raises an error about the function during which the worker process ended.

    Args:
        env: the environment.
        run: the results before the crash; None if there are none.
        error: the error of the worker process.
        num_envs: the number of environments, E.
        seed: the seed of the environments.
        time_limit: the CPU seconds that a call was allowed to take.
        check_run: checks the results before the crash, since a write to other memory may end the process only later.

    Raises:
        AuthoringError: always. The message names the line if plain Python shows the fault too, and otherwise the function.
    """
    moments = RunMoments(run, seed) if run is not None else None
    effect = f"does not return within {time_limit:g} s of CPU time" if error.out_of_time else f"ends the process: {error}"
    problem = f"compiled code of the environment, which begins with this function, {effect}"
    if moments is not None and len(moments.run.obs) > len(moments.run.actions):
        check_run(moments.run)
        condition = f"with {2 * num_envs} environments and not with {num_envs}"
        raise authoring_error(step_function(env), f"{problem}, {condition}; check it with a larger num_envs")
    _repeat_following(env, moments, num_envs, seed)
    if moments is not None:
        check_run(moments.run)
    function = first_function(env.reset) if moments is None else step_function(env)
    call = "in the first reset" if moments is None else f"in step {len(moments.run.obs)}"
    remedy = "look for a loop, or an index, that depends on rounding"
    raise authoring_error(function, f"{problem}, {call}; plain Python shows no fault: {remedy}")


def explain_error(env: Environment, run: CompiledRun | None, num_envs: int, seed: int) -> None:
    """Raises an error about the line in which compiled code raised one, such as an index beyond the end of a tuple.

    Args:
        env: the environment.
        run: the results before the error; None if there are none.
        num_envs: the number of environments, E.
        seed: the seed of the environments.

    Raises:
        AuthoringError: plain Python shows a fault in the call after the last results.
    """
    if run is not None and len(run.obs) <= len(run.actions):
        _repeat_following(env, RunMoments(run, seed), num_envs, seed)


def _repeat_following(env: Environment, moments: RunMoments | None, num_envs: int, seed: int) -> None:
    """Repeats in plain Python the call in which a compiled run ended; `moments` is None if that was the first reset."""
    repeat = _repeat_single(env) if isinstance(env, SingleAgentEnv) else _repeat_multi(env, seed, moments)
    for row in range(num_envs):
        key = Key(seed & 0xFFFFFFFF, seed >> 32, row, 0, 0)
        moment = Moment(0, row, key, {}, {}, None, 1, {}) if moments is None else moments.following(row)
        with fault_place(moment.place()):
            repeat(moment)


def _repeat_single(env: SingleAgentEnv) -> Callable[[Moment], None]:
    reference = SingleAgentReference(env)

    def repeat(m: Moment) -> None:
        key = CheckedKey(*m.key)
        with record_draws():
            if m.key.step == 0:
                after = reference.reset(key, m.before)
            else:
                assert m.action is not None, "a step has an action"
                after, _, _ = reference.step(m.before, author_action(m.action), key)
        reference.observe(after._asdict())

    return repeat


def _repeat_multi(env: MultiAgentEnv, seed: int, moments: RunMoments | None) -> Callable[[Moment], None]:
    race_check = RaceCheck(env, moments.following(0).limit if moments is not None else 1, seed)

    def repeat(m: Moment) -> None:
        if m.key.step == 0:
            race_check.reset_from(m.before, m.key)
        else:
            assert m.action is not None, "a step has an action"
            race_check.step_from(m.before, m.action, m.key)

    return repeat
