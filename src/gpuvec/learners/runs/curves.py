"""Learning curves of groups of runs: the mean over seeds with an interval. This module does not import torch.

Letters: S seeds, N points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from gpuvec.learners.runs.groups import RunGroup, unique_descriptions
from gpuvec.learners.runs.history import FloatArray, RunHistory
from gpuvec.learners.runs.seed_statistics import MIN_SEEDS, mean_and_interval

MAX_POINTS = 400  # of a curve; neighbouring points of longer ones are averaged
XName = Literal["steps", "seconds"]
X_TITLES = {"steps": "environment steps", "seconds": "seconds of training"}


class MeanCurve(NamedTuple):
    """The mean of a metric over seeds; all arrays are (N,)."""

    x: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray
    num_seeds: int


class Line(NamedTuple):
    """A curve of a panel."""

    name: str
    color_index: int
    curve: MeanCurve


class Panel(NamedTuple):
    """The curves of a metric in an environment."""

    env: str
    metric_name: str
    lines: list[Line]


def make_panels(groups: Sequence[RunGroup], x_name: XName) -> tuple[list[Panel], list[str]]:
    """Returns a panel for each environment and each name of the metric, with a line for each group.

    Args:
        groups: the groups of runs.
        x_name: the horizontal axis.

    Returns:
        The panels, and messages about runs that end early and about groups without a curve.
    """
    panels: list[Panel] = []
    messages: list[str] = []
    for env in dict.fromkeys(group.env for group in groups):
        in_env = [group for group in groups if group.env == env]
        labels = unique_descriptions(in_env)
        for metric_name in dict.fromkeys(name for group in in_env for name in group.metric_names):
            lines = []
            for color_index, (group, name) in enumerate(zip(in_env, labels, strict=True)):
                if metric_name not in group.metric_names:
                    continue
                curve, notes = mean_curve(group.runs, metric_name, x_name)
                messages += notes
                if curve is not None:
                    lines.append(Line(f"{name} ({describe_seeds(curve.num_seeds)})", color_index, curve))
            if lines:
                panels.append(Panel(env, metric_name, lines))
    return panels, messages


def describe_seeds(num_seeds: int) -> str:
    """Returns the number of seeds and what the interval of a curve is, such as "5 seeds, 95 % interval".

    Args:
        num_seeds: the number of seeds.
    """
    if num_seeds == 1:
        return "1 seed"
    return f"{num_seeds} seeds, " + ("95 % interval" if num_seeds >= MIN_SEEDS else "lowest to highest")


def mean_curve(runs: Sequence[RunHistory], metric_name: str, x_name: XName) -> tuple[MeanCurve | None, list[str]]:
    """Returns the mean curve of runs over the range of x that all of them have.

    Between the points of a run its values are interpolated linearly.

    Args:
        runs: the runs of one group.
        metric_name: the name of a column.
        x_name: the name of the column of the horizontal axis.

    Returns:
        The curve, None if no run has a number or they have no range in common; and messages.
    """
    points, messages = [], []
    for run in runs:
        x, y = run.columns[x_name], run.columns.get(metric_name, np.full(len(run.columns[x_name]), np.nan))
        is_point = np.isfinite(x) & np.isfinite(y)
        x, y = x[is_point], y[is_point]
        if len(x) and (np.diff(x) > 0.0).all():
            points.append((run, x, y))
        else:
            reason = f"{x_name} that do not ascend" if len(x) else "no number yet"
            messages.append(f"{run.path}: {metric_name} has {reason}. It is left out.")
    if not points:
        return None, messages
    begin, end = max(x[0] for _, x, _ in points), min(x[-1] for _, x, _ in points)
    if begin > end:
        return None, [*messages, f"the runs beside {points[0][0].path} have no {x_name} in common, so they have no curve."]
    messages += _early_ends(points, x_name, end)
    grid = np.unique(np.concatenate([x for _, x, _ in points]))
    grid = grid[(grid >= begin) & (grid <= end)]
    x, *values = (_thinned(row) for row in (grid, *(np.interp(grid, x, y) for _, x, y in points)))
    mean, low, high = mean_and_interval(np.stack(values))
    return MeanCurve(x, mean, low, high, len(values)), messages


def _early_ends(points: Sequence[tuple[RunHistory, FloatArray, FloatArray]], x_name: XName, end: float) -> list[str]:
    """Names the run at whose end the curve ends, if others are longer by more than a twentieth."""
    longest = max(x[-1] for _, x, _ in points)
    if end >= 0.95 * longest:
        return []
    shortest = next(run for run, x, _ in points if x[-1] == end)
    return [f"{shortest.path} ends at {end:,.0f} of {longest:,.0f} {x_name}, and so does the curve of its group."]


def _thinned(row: FloatArray) -> FloatArray:
    """Returns the means of equally many neighbours, at most `MAX_POINTS`."""
    size = -(-len(row) // MAX_POINTS)
    if size == 1:
        return row
    starts = np.arange(0, len(row), size)
    return np.asarray(np.add.reduceat(row, starts) / np.diff([*starts, len(row)]), np.float64)
