"""Checks of the results of a compiled run, and that two runs are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error, step_function
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.phases import first_function
from gpuvec.spec import Environment, MultiAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, metrics_of
from gpuvec.testing.compiled_runs.result_checks import ResultChecks
from gpuvec.testing.target_check.differences import differences, differs_in_bits
from gpuvec.testing.target_check.result_layout import make_result_layout


def check_spaces(env: Environment, run: CompiledRun) -> str:
    """Checks observations against their space, that rewards, states and metrics are finite, and that masks allow an action.

    Args:
        env: the environment.
        run: its results.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a value is not; the message names the first.
    """
    num_envs, num_agents = len(run.obs[0]), make_schema(env).num_agents
    checks = ResultChecks(env, num_envs)
    for t, obs in enumerate(run.obs):
        is_reset = run.terminated[t - 2] | run.truncated[t - 2] if t > 1 else np.full(num_envs, t == 0)
        checks.check_states(run.states[t], is_reset, t)
        checks.check_observations(obs, t)
        if t > 0:
            checks.check_reward(run.reward[t - 1], t)
            checks.check_metrics(metrics_of(run.infos[t - 1]), t)
    for t, mask in enumerate(run.masks[: len(run.reward)]):
        acts = run.infos[t]["agent_mask"].copy() if isinstance(env, MultiAgentEnv) else np.ones((num_envs, 1), np.bool_)
        if t > 0:  # The next step resets environments whose episode is over.
            acts[run.terminated[t - 1] | run.truncated[t - 1]] = False
        checks.check_masks(mask, acts, t)
    count = len(run.obs) * num_envs * num_agents
    return f"{count:,} observations are finite and within their bounds, all rewards and states finite"


def check_equal_runs(env: Environment, run: CompiledRun, other: CompiledRun, runs: str) -> None:
    """Checks that two runs are bit-identical, in the environments and steps that both have.

    Args:
        env: the environment.
        run: a run.
        other: a run with the same actions and seed.
        runs: a description of the two runs, for the message.

    Raises:
        AuthoringError: they differ; the message names the first difference.
    """
    num_envs = min(len(run.obs[0]), len(other.obs[0]))
    for t in range(min(len(run.obs), len(other.obs))):
        check_equal_step(env, t, _results_at(run, t, num_envs), _results_at(other, t, num_envs), runs)


def check_equal_step(
    env: Environment, t: int, expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]], runs: str
) -> None:
    """Checks that the results of two runs after t steps are bit-identical.

    Args:
        env: the environment.
        t: the number of steps.
        expected: {name: (E, ...) array} of one run.
        actual: the same of the other run.
        runs: a description of the two runs, for the message.

    Raises:
        AuthoringError: they differ; the message names the first difference.
    """
    different = differences(expected, actual, differs_in_bits)
    if different:
        first = different[0]
        place = first.place(make_result_layout(make_schema(env)))
        problem = f"{runs} differ: after {t} steps {place} is {first.expected} and {first.actual}"
        function = step_function(env) if t else first_function(env.reset)
        raise authoring_error(function, f"{problem}; results must depend on the arguments alone")


def _results_at(run: CompiledRun, t: int, num_envs: int) -> dict[str, NDArray[Any]]:
    """The results of the first environments after t steps."""
    arrays: dict[str, NDArray[Any]] = {"observation": run.obs[t]} | {f"state {k}": v for k, v in run.states[t].items()}
    if t:
        arrays |= {k: getattr(run, k)[t - 1] for k in ("reward", "terminated", "truncated")} | run.infos[t - 1]
    return {name: array[:num_envs] for name, array in arrays.items()}
