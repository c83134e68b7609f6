"""Rows of numbers that compare groups of runs. This module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.runs.groups import RunGroup, describe_settings, differing_settings
from gpuvec.learners.runs.history import FloatArray, RunHistory
from gpuvec.learners.runs.seed_statistics import Estimate, estimate

FINAL_PART = 0.1  # of the steps of a run, at its end, over which the final value is a mean


class Comparison(NamedTuple):
    """A metric of a group of runs in numbers; nan where there is none."""

    env: str
    algorithm: str
    num_seeds: int
    metric_name: str
    final: Estimate
    """Of the seeds' means over the last tenth of the steps."""
    evaluated: Estimate
    """For the return of all agents: of the mean returns of the evaluations at the end, if all runs of the group have one."""
    steps: tuple[float, float]
    """The environment steps of the shortest and of the longest run."""
    steps_per_second: float
    """The mean over seeds, without the first iteration, in which a CPU's kernels are compiled."""
    threshold: float
    """The reward threshold of the environment."""
    steps_to_threshold: float
    """The mean over the seeds that reached it of the steps after which an evaluation of the policy first did."""
    seeds_at_threshold: int
    seeds_evaluated: int
    """How many seeds have evaluations with the environment's own parameters, for which the threshold is."""
    settings: str
    """The settings in which the groups differ."""


def reward_threshold(env_id: str) -> float:
    """Returns the reward threshold of an environment, nan if it has none or is not registered.

    The id is from a file, so the module in front of an id is not imported.

    Args:
        env_id: the id of the environment, "module:id" or "id".
    """
    spec = gym.registry.get(env_id.rpartition(":")[2])
    return math.nan if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def compare_groups(groups: Sequence[RunGroup], threshold_of: Callable[[str], float]) -> list[Comparison]:
    """Returns a row for each group and each name of its metric.

    Args:
        groups: the groups of runs.
        threshold_of: returns the reward threshold of an environment, nan if there is none.
    """
    return [
        _compare(group, metric_name, threshold_of(group.env), describe_settings(differing))
        for group, differing in zip(groups, differing_settings(groups), strict=True)
        for metric_name in group.metric_names
    ]


def _compare(group: RunGroup, metric_name: str, threshold: float, settings: str) -> Comparison:
    runs = group.runs
    last_steps = [float(run.columns["steps"][-1]) for run in runs]
    # The evaluation's mean return is that of all agents, so it belongs to no role.
    evaluated = np.array([run.evaluated_return if metric_name == "return" else np.nan for run in runs])
    solved_at = np.array([steps_to_threshold(run, threshold) for run in runs])
    solved_at = solved_at[np.isfinite(solved_at)]
    return Comparison(
        env=group.env, algorithm=group.algorithm, num_seeds=len(runs), metric_name=metric_name,
        final=_estimate_finite(np.array([final_value(run, metric_name) for run in runs])),
        evaluated=estimate(evaluated) if np.isfinite(evaluated).all() else Estimate(np.nan, np.nan, np.nan),
        steps=(min(last_steps), max(last_steps)),
        steps_per_second=float(np.mean([steps_per_second(run) for run in runs])),
        threshold=threshold,
        steps_to_threshold=float(solved_at.mean()) if len(solved_at) else np.nan,
        seeds_at_threshold=len(solved_at), seeds_evaluated=sum(map(is_evaluated, runs)), settings=settings,
    )  # fmt: skip


def _estimate_finite(values: FloatArray) -> Estimate:
    finite = values[np.isfinite(values)]
    return estimate(finite) if len(finite) else Estimate(np.nan, np.nan, np.nan)


def final_value(run: RunHistory, metric_name: str) -> float:
    """Returns the mean of a metric over the last tenth of a run's steps.

    If there is no number in them, such as the return where no episode ended, it is the last number before; nan without any.

    Args:
        run: the run.
        metric_name: the name of a column.
    """
    steps, values = run.columns["steps"], run.columns.get(metric_name, np.empty(0))
    is_number = np.isfinite(values)
    if not is_number.any():
        return np.nan
    is_final = is_number & (steps > (1.0 - FINAL_PART) * steps[-1])
    return float(values[is_final].mean() if is_final.any() else values[is_number][-1])


def steps_per_second(run: RunHistory) -> float:
    """Returns the environment steps per second of a run after its first iteration, or of this one if it is the only one.

    Args:
        run: the run.
    """
    steps, seconds = run.columns["steps"], run.columns["seconds"]
    if len(steps) > 1 and seconds[-1] > seconds[0]:
        return float((steps[-1] - steps[0]) / (seconds[-1] - seconds[0]))
    return float(run.columns["steps_per_second"][-1])


def is_evaluated(run: RunHistory) -> bool:
    """Returns whether a run has evaluations of its policy with the environment's own parameters.

    Args:
        run: the run.
    """
    return EVAL_RETURN in run.columns and run.settings.get("evaluate_params") == {}


def steps_to_threshold(run: RunHistory, threshold: float) -> float:
    """Returns the environment steps after which an evaluation first reached a threshold; nan if none did.

    Returns in training cannot say it: the episodes that end in an iteration began under older policies, and short episodes end
    first.

    Args:
        run: the run.
        threshold: the threshold, for the environment's own parameters; nan is never reached.
    """
    is_solved = run.columns[EVAL_RETURN] >= threshold if is_evaluated(run) else np.zeros(1, bool)
    return float(run.columns["steps"][is_solved.argmax()]) if is_solved.any() else np.nan


def describe_unequal_sizes(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yields a message for each environment whose steps to the threshold are those of different numbers of environments.

    Args:
        groups: the groups of runs.
    """
    for env in dict.fromkeys(group.env for group in groups):
        in_env = [group for group in groups if group.env == env and any(map(is_evaluated, group.runs))]
        sizes = dict.fromkeys(group.settings.get("num_envs", "?") for group in in_env)
        if len(sizes) > 1:
            yield (
                f"runs of {env} have {' and '.join(sizes)} environments: compare steps to the threshold at equal num_envs "
                "alone, since an episode takes as many times its length in steps."
            )
