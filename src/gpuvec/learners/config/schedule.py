"""Values that change while a policy is trained: tables of environment steps and values, straight lines between them."""

from __future__ import annotations

from itertools import pairwise

Schedule = tuple[tuple[int, float], ...]


def interpolate(table: Schedule, steps: int) -> float:
    """The value after that many environment steps; before the first entry it is the first's, after the last the last's."""
    if steps <= table[0][0]:
        return table[0][1]
    for (begin, first), (end, last) in pairwise(table):
        if steps <= end:
            return first + (last - first) * (steps - begin) / (end - begin)
    return table[-1][1]


def is_ascending(table: Schedule) -> bool:
    """Whether steps grow from 0 or more, and no value is below 0."""
    steps = [step for step, _ in table]
    return all(a < b for a, b in pairwise(steps)) and min(steps, default=0) >= 0 and all(value >= 0.0 for _, value in table)
