"""Comparisons of runs: statistics over seeds, groups of runs that differ in their seed alone, and rows of numbers of groups.

This module does not import torch. Letters: S seeds.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.runs.history import FloatArray, RunHistory

MIN_SEEDS = 3  # for an interval of confidence
BOOTSTRAP_SAMPLES = 10_000
MAX_SAMPLED_VALUES = 2**22  # at once
NORMAL_975 = 1.959963984540054
T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The 97.5 % quantiles of Student's t distribution with 1 to 10 degrees of freedom."""
# The number of iterations only determines total_steps, and how often a policy is evaluated does not change it.
IGNORED_SETTINGS = ("env", "algorithm", "seed", "num_iterations", "evaluate_every", "evaluate_episodes")
MAX_VALUE_LENGTH = 40
FINAL_PART = 0.1  # of the steps of a run, at its end, over which the final value is a mean


class Estimate(NamedTuple):
    """A number with its 95 % interval, both nan if there are too few seeds for one."""

    value: float
    low: float
    high: float


def t_quantile(degrees: int) -> float:
    """Returns the 97.5 % quantile of Student's t distribution, to a thousandth of its value.

    Args:
        degrees: the degrees of freedom, at least 1. Above 10 it is the expansion 26.7.5 of Abramowitz and Stegun.
    """
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    z = NORMAL_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def mean_and_interval(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns the mean over seeds with its interval.

    Args:
        values: (S, ...), finite.

    Returns:
        The mean and both ends of the interval, (...). It is the 95 % t interval for three seeds and more, from the lowest to
        the highest value for two, and the mean itself for one.
    """
    mean = values.mean(0)
    if len(values) < MIN_SEEDS:
        return mean, values.min(0), values.max(0)
    half_width = t_quantile(len(values) - 1) * values.std(0, ddof=1) / len(values) ** 0.5
    return mean, mean - half_width, mean + half_width


def interquartile_mean(values: FloatArray) -> FloatArray:
    """Returns the mean of the middle half of the values, (...).

    Where a quarter of S is not an integer, the values at both ends of the middle half count in part. See Agarwal, Schwarzer,
    Castro, Courville and Bellemare, 2021, arXiv:2108.13264.

    Args:
        values: (..., S), finite.
    """
    num_values = values.shape[-1]
    # Value k covers the part of the distribution from k / S to (k + 1) / S.
    edges = np.arange(num_values + 1) / num_values
    weights = np.diff(edges.clip(0.25, 0.75)) / 0.5
    mean: FloatArray = np.sort(values, axis=-1) @ weights
    return mean


def bootstrap_interval(values: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
    """Returns the 95 % percentile interval of a statistic over samples of the seeds with replacement.

    Args:
        values: (S,), finite. Equal values give equal intervals: the samples are the same in each call.
        statistic: maps (..., S) to (...).
    """
    rng = np.random.default_rng(0)
    # The samples of thousands of seeds are drawn in parts, since all of them would take gigabytes.
    part = max(1, min(BOOTSTRAP_SAMPLES, MAX_SAMPLED_VALUES // len(values)))
    sizes = [min(part, BOOTSTRAP_SAMPLES - begin) for begin in range(0, BOOTSTRAP_SAMPLES, part)]
    statistics = [statistic(values[rng.integers(len(values), size=(size, len(values)))]) for size in sizes]
    low, high = np.quantile(np.concatenate(statistics), [0.025, 0.975])
    return float(low), float(high)


def estimate(values: FloatArray) -> Estimate:
    """Returns the interquartile mean of three seeds and more with its bootstrap interval; of fewer the mean alone.

    Args:
        values: (S,), finite, at least one.
    """
    if len(values) < MIN_SEEDS:
        return Estimate(float(values.mean()), np.nan, np.nan)
    return Estimate(float(interquartile_mean(values)), *bootstrap_interval(values, interquartile_mean))


class RunGroup(NamedTuple):
    """Runs of one environment and algorithm with equal settings, each with its own seed."""

    env: str
    algorithm: str
    settings: dict[str, str]
    """{setting: value as JSON}, those of `params` as "params.gravity"; without the seed."""
    runs: list[RunHistory]

    @property
    def metric_names(self) -> list[str]:
        """The names of the metric, one for each role if there are several policies."""
        return list(dict.fromkeys(name for run in self.runs for name in run.selected))


def group_runs(histories: Iterable[RunHistory]) -> tuple[list[RunGroup], list[str]]:
    """Groups runs by environment, algorithm and settings.

    Runs of the same seed are no independent samples, so the longest of them counts.

    Args:
        histories: the runs.

    Returns:
        The groups in the order of their first runs, and messages about runs that are left out.
    """
    groups: dict[str, RunGroup] = {}
    for history in histories:
        settings = _comparable_settings(history.settings)
        key = json.dumps([history.env, history.algorithm, sorted(settings.items())])
        groups.setdefault(key, RunGroup(history.env, history.algorithm, settings, [])).runs.append(history)
    messages = []
    for group in groups.values():
        by_seed: dict[str, RunHistory] = {}
        for run in sorted(group.runs, key=lambda run: -run.columns["steps"][-1]):
            longest = by_seed.setdefault(run.seed, run)
            if longest is not run:
                messages.append(f"{run.path} has the seed and the settings of {longest.path}. It is left out.")
        group.runs[:] = [run for run in group.runs if by_seed[run.seed] is run]
    return list(groups.values()), messages


def differing_settings(groups: Sequence[RunGroup]) -> list[dict[str, str]]:
    """Returns for each group the settings whose values are not the same in all groups that have them.

    Args:
        groups: the groups.
    """
    values: dict[str, set[str]] = {}
    for group in groups:
        for name, value in group.settings.items():
            values.setdefault(name, set()).add(value)
    return [{name: value for name, value in group.settings.items() if len(values[name]) > 1} for group in groups]


def describe_settings(settings: Mapping[str, str]) -> str:
    """Returns settings as text, such as "gamma=0.9 params.gravity=3.7"; long values are shortened.

    Args:
        settings: {setting: value as JSON}.
    """
    texts = (value.strip('"') for value in settings.values())
    texts = (text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..." for text in texts)
    return " ".join(f"{name}={text}" for name, text in zip(settings, texts, strict=True))


def unique_descriptions(groups: Sequence[RunGroup]) -> list[str]:
    """Returns a short name of each group among `groups`: its algorithm, and the settings that differ.

    Args:
        groups: the groups, of one environment.
    """
    names = [
        " ".join(filter(None, (group.algorithm, describe_settings(differing))))
        for group, differing in zip(groups, differing_settings(groups), strict=True)
    ]
    counts = Counter(names)  # shortened values may be equal
    return [f"{name} ({k})" if counts[name] > 1 else name for k, name in enumerate(names, 1)]


def _comparable_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "params" and isinstance(value, dict):
            flat |= {f"params.{parameter}": number for parameter, number in value.items()}
        elif name not in IGNORED_SETTINGS:
            flat[name] = value
    if isinstance(flat.get("device"), str):
        flat["device"] = re.sub(r":\d+$", "", flat["device"])  # GPUs of one machine are alike
    return {str(name)[:80]: json.dumps(value, sort_keys=True)[:1000] for name, value in flat.items()}


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
    none, rows = Estimate(np.nan, np.nan, np.nan), []
    for group, differing in zip(groups, differing_settings(groups), strict=True):
        runs, threshold = group.runs, threshold_of(group.env)
        last_steps = [float(run.columns["steps"][-1]) for run in runs]
        solved_at = np.array([steps_to_threshold(run, threshold) for run in runs])
        solved_at = solved_at[np.isfinite(solved_at)]
        for metric_name in group.metric_names:
            final = np.array([final_value(run, metric_name) for run in runs])
            final = final[np.isfinite(final)]
            # The evaluation's mean return is that of all agents, so it belongs to no role.
            evaluated = np.array([run.evaluated_return if metric_name == "return" else np.nan for run in runs])
            rows.append(Comparison(
                env=group.env, algorithm=group.algorithm, num_seeds=len(runs), metric_name=metric_name,
                final=estimate(final) if len(final) else none,
                evaluated=estimate(evaluated) if np.isfinite(evaluated).all() else none,
                steps=(min(last_steps), max(last_steps)),
                steps_per_second=float(np.mean([steps_per_second(run) for run in runs])), threshold=threshold,
                steps_to_threshold=float(solved_at.mean()) if len(solved_at) else np.nan, seeds_at_threshold=len(solved_at),
                seeds_evaluated=sum(map(is_evaluated, runs)), settings=describe_settings(differing),
            ))  # fmt: skip
    return rows


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
