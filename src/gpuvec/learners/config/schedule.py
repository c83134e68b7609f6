"""Values that change during a training: linearly to 0, or by tables of environment steps and values, which are interpolated."""

from __future__ import annotations

from itertools import pairwise

Schedule = tuple[tuple[int, float], ...]
"""Pairs of environment steps and values, in the order of their steps."""


def interpolate(table: Schedule, steps: int) -> float:
    """Returns the value after `steps` environment steps.

    Before the first entry of `table` it is that of the first entry, and after the last entry that of the last one.
    """
    if steps <= table[0][0]:
        return table[0][1]
    for (begin, first), (end, last) in pairwise(table):
        if steps <= end:
            return first + (last - first) * (steps - begin) / (end - begin)
    return table[-1][1]


def remaining_share(iteration: int, iterations: int) -> float:
    """Returns the share of a training that is left, by which learning rates are annealed; 0 after its end.

    Args:
        iteration: the number of iterations that are done.
        iterations: the number of iterations of the training.
    """
    return max(0.0, 1.0 - iteration / iterations)


def is_ascending(table: Schedule) -> bool:
    """Returns whether the steps of `table` increase from 0 or more, and no value is below 0."""
    steps = [step for step, _ in table]
    return all(a < b for a, b in pairwise(steps)) and min(steps, default=0) >= 0 and all(value >= 0.0 for _, value in table)
