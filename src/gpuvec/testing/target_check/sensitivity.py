"""Results that are sensitive to rounding: a tiny change of the state before a call changes them as much as two targets differ.

Letters: E envs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.testing.target_check.differences import TOLERANCE, Difference, exceeds_tolerance
from gpuvec.testing.target_check.lockstep_pair import SHARED_RESULTS, LockstepPair, Results
from gpuvec.testing.target_check.result_layout import STATE, ResultLayout

PERTURBATION = 1e-6  # the relative change of a float of the state, of the size of a few roundings
ROUNDING = 1.2e-7  # the relative change of all floats at once: float32 has 24 bits
WAYS = 5  # to change a field: up and down, of any agent and of the one that differs, and together with all other fields
MAX_PERTURBATIONS = 50 * WAYS  # of a difference
SLIGHT = 10 * TOLERANCE  # floats that differ by at most this differ slightly


def is_sensitive(pair: LockstepPair, cpu: Results, other: Results, difference: Difference) -> bool:
    """Returns whether a tiny change of the state before the last call gives the CPU the results of the other target.

    The state is changed in `MAX_PERTURBATIONS` ways: a float x by up to `PERTURBATION` * max(1, |x|), in each field of the
    state in turn, up and down, of any agent and of the one that differs; then all floats, by up to `ROUNDING` * max(1, |x|).
    The CPU makes the call from E of these states at once. All results of the environment have to be equal, up to the tolerance.

    Args:
        pair: the targets.
        cpu: the results of the CPU in the last call.
        other: those of the other target.
        difference: the first difference of an environment.
    """
    if not difference.element or difference.name in SHARED_RESULTS or not pair.steps_from_state(difference.element[0]):
        return False
    row, num_envs, random = difference.element[0], len(pair.ended), np.random.default_rng(0)
    agent = _first_differing_agent(pair.layout, cpu, other, row)
    for first in range(0, MAX_PERTURBATIONS, num_envs):
        count = min(num_envs, MAX_PERTURBATIONS - first)
        change = partial(_change_floats, pair.layout, agent, range(first, first + count), random)
        results = pair.repeat_changed(row, change)
        is_equal = np.ones(count, np.bool_)
        for name, array in results.items():
            expected = array[:count]
            is_unequal = exceeds_tolerance(expected, np.broadcast_to(other[name][row], expected.shape))
            is_equal &= ~is_unequal.reshape(count, -1).any(1)
        if is_equal.any():
            return True
    return False


def _first_differing_agent(layout: ResultLayout, cpu: Results, other: Results, row: int) -> int | None:
    """The agent of the first value of an agent that differs, in which the cause probably is; None if there is none."""
    for name, array in cpu.items():
        if name not in SHARED_RESULTS and layout.num_set_axes(name, array.ndim):
            elements = np.argwhere(exceeds_tolerance(array[row], other[name][row]))
            if len(elements) and (agent := layout.agent(name, (row, *elements[0].tolist()))) is not None:
                return agent
    return None


def _change_floats(
    layout: ResultLayout, agent: int | None, numbers: range, random: np.random.Generator, floats: dict[str, NDArray[Any]]
) -> None:
    """Changes floats of the first rows in the ways with these numbers (see `is_sensitive`)."""
    names = list(floats)
    for row, number in enumerate(numbers if names else ()):
        field, way = divmod(number, WAYS)
        if way == WAYS - 1:
            for array in floats.values():
                array[row] += ROUNDING * random.uniform(-1.0, 1.0, array.shape[1:]) * np.maximum(1.0, np.abs(array[row]))
            continue
        name = names[field % len(names)]
        array = floats[name]
        element = (row, *random.integers(array.shape[1:]))
        if agent is not None and way >= 2 and array.ndim > 1:
            index = layout.index_of_agent(name, agent, array.shape[1])
            element = element if index is None else (row, index, *element[2:])
        array[element] += (1 - 2 * (way % 2)) * PERTURBATION * random.uniform() * max(1.0, abs(array[element]))


def differing_part(layout: ResultLayout, cpu: Results, other: Results, row: int) -> float:
    """Returns which part of the result of an environment differs, above 0 and at most 1.

    Each agent and each element of an index set computes its own part, which rounding and wrong rules change alike. The part
    that differs is therefore the share of the agents, or of the elements of another set if that is larger, whose own values
    differ: their fields of the state and their rewards. Observations contain values of others, and count if nothing else
    differs. If an episode ends on one side alone, or if only values of the environment differ, the whole result differs.

    Args:
        layout: the owners of the elements of results.
        cpu: {name: (E, ...) array}, the results of the CPU.
        other: the results of the other target, of which a row differs.
        row: the index of the environment.
    """
    unequal = {name: exceeds_tolerance(a[row], other[name][row]) for name, a in cpu.items() if name not in SHARED_RESULTS}
    if any(unequal[name].any() for name in ("terminated", "truncated") if name in unequal):
        return 1.0
    own, of_environment, of_others = 0.0, 0.0, 0.0
    for name, elements in unequal.items():
        num_axes = layout.num_set_axes(name, elements.ndim + 1)
        part = float(elements.reshape(*elements.shape[:num_axes], -1).any(-1).mean())
        if not name.startswith(STATE) and name != "reward":
            of_others = max(of_others, part)
        elif num_axes:
            own = max(own, part)
        else:
            of_environment = max(of_environment, part)
    return own or of_environment or of_others


def differs_slightly(cpu: Results, other: Results, row: int) -> bool:
    """Returns whether no flag or integer of the result of an environment differs, and floats differ by at most `SLIGHT`.

    A difference of large numbers, for example, amplifies rounding to more than the tolerance of comparisons. A flag or an
    integer changes at a threshold, and so do most floats that differ by more.

    Args:
        cpu: {name: (E, ...) array}, the results of the CPU.
        other: the results of the other target.
        row: the index of the environment.
    """
    names = (name for name in cpu if name not in SHARED_RESULTS)
    return not any(exceeds_tolerance(cpu[name][row], other[name][row], SLIGHT).any() for name in names)
