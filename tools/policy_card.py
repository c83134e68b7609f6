"""Model cards of trained policies: Markdown with a record in JSON, which a check reads again."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpuvec.policies import RECORD, read_record

# 97.5 % quantiles of Student's t distribution with n - 1 degrees of freedom, for n from 2 to 10.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
CURVE_ROWS = 8


class Interval(NamedTuple):
    """A mean over seeds with half its 95 % confidence interval."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half_width:.2g}"


def interval_over_seeds(values: Sequence[float]) -> Interval:
    """Returns the mean of the results of several seeds, and half its 95 % confidence interval.

    Args:
        values: two to ten results.
    """
    quantile = T_QUANTILES[len(values) - 2]
    return Interval(statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5)


class Record(NamedTuple):
    """What a card states of a policy and of the trainings of several seeds."""

    name: str
    env: str
    algorithm: str
    params: dict[str, Any]  # of the environment in which the returns were measured, those that are not its defaults
    command: str
    seed: int  # of the policy in the file
    seeds: list[int]
    returns: dict[str, list[float]]  # {role: mean return of each seed}
    measure: str  # what a return is, in words
    curve: list[list[float]]  # rows of env steps, and the mean, lowest and highest return of the seeds
    curve_measure: str  # what a return of the curve is, in words
    steps: int
    device: str
    date: str
    versions: dict[str, str]
    sha256: str  # of the policy file
    goal: str  # what a good policy does or who should win, in words
    random_returns: dict[str, float]  # {role: mean return of random play}, measured as `returns`
    demo: dict[str, Any]  # options of `record_policy` for `gpuvec demo`, those that are not its defaults

    def intervals(self) -> dict[str, Interval]:
        """Returns {role: the mean over seeds, with its interval}."""
        return {role: interval_over_seeds(values) for role, values in self.returns.items()}


def write_card(record: Record) -> str:
    """Returns the card of a policy."""
    return "\n".join(_card_lines(record)) + "\n"


def read_card(text: str) -> Record:
    """Returns the record in the text of a card.

    Raises:
        ValueError: the card has no record.
    """
    return Record(**read_record(text))


def differences(record: Record, returns: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns a line for each role whose trainings have other returns than those of the card.

    Two means differ if they are further apart than both 95 % intervals together allow, or than 1 % of the mean if that is more:
    where all seeds reach the largest return, the intervals are empty.

    Args:
        record: that of the card.
        returns: {role: mean return of each seed} of new trainings.
    """
    lines = []
    for role, expected in record.intervals().items():
        measured = interval_over_seeds(returns[role])
        allowed = max(math.hypot(expected.half_width, measured.half_width), 0.01 * abs(expected.mean))
        if abs(measured.mean - expected.mean) > allowed:
            lines.append(f"{record.name}, {role}: {measured} in new trainings, {expected} in the card")
    return lines


def _card_lines(record: Record) -> Iterator[str]:
    index = record.seeds.index(record.seed)
    yield from (f"# {record.name}", "", record.goal, "")
    yield from (f"A policy for `{record.env}`, trained by {record.algorithm.upper()}:", "", "```python")
    yield from (f'policy = gpuvec.load_policy("{record.name}")', "```", "", "| | |", "| --- | --- |")
    yield f"| environment | `{record.env}`" + (
        f" with `{record.params}` |" if record.params else " with its default parameters |"
    )
    yield f"| trained by | `{record.command}` |"
    yield f"| steps | {record.steps:,} |"
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    yield f"| on | {record.device}, {record.date}, {versions} |"
    yield f"| chosen | the seed whose result is the median of the seeds {', '.join(map(str, record.seeds))} |"
    yield from ("", f"Returns are {record.measure}. Intervals are 95 % confidence intervals over seeds.", "")
    yield from ("| role | this policy | all seeds | random play |", "| --- | --- | --- | --- |")
    for role, interval in record.intervals().items():
        yield f"| {role} | {record.returns[role][index]:.4g} | {interval} | {record.random_returns[role]:.4g} |"
    if record.curve:
        yield from ("", f"Learning curve, {record.curve_measure}:", "")
        yield from ("| steps | mean return | lowest seed | highest seed |", "| --- | --- | --- | --- |")
        yield from (f"| {steps:,.0f} | {mean:.4g} | {low:.4g} | {high:.4g} |" for steps, mean, low, high in record.curve)
    yield from ("", f"`python tools/train_policies.py verify {record.name}` trains again and compares.", "")
    yield RECORD[0] + json.dumps(record._asdict()) + RECORD[1]


def combine_curves(curves: Sequence[Sequence[tuple[int, float]]]) -> list[list[float]]:
    """Returns rows of env steps, and the mean, lowest and highest return of the seeds, at about equal distances.

    Args:
        curves: (env steps, return) of each seed; only steps that all of them have are used.
    """
    by_steps = [dict(curve) for curve in curves]
    common = sorted(set.intersection(*map(set, by_steps)))
    chosen = sorted({common[round(k * (len(common) - 1) / (CURVE_ROWS - 1))] for k in range(CURVE_ROWS)}) if common else []
    rows = [(steps, [curve[steps] for curve in by_steps]) for steps in chosen]
    return [[steps, statistics.mean(values), min(values), max(values)] for steps, values in rows]
