"""Finds where two results differ: floats by more than a tolerance, flags and integers by any amount."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

TOLERANCE = 1e-5  # of floats, absolute up to 1 and relative above


class Difference(NamedTuple):
    """The first element in which the results of an environment differ."""

    name: str  # the name of the array, such as "observation" or "state x"
    element: tuple[int, ...]  # the index in the array, the environment first; empty if the shapes or the dtypes differ
    expected: str
    actual: str

    def agent(self, has_agents: bool) -> int | None:
        """The index of the agent to which the element belongs, None if it belongs to no single agent.

        Args:
            has_agents: whether the second axis of results is that of agents, as in a `MultiAgentEnv`.
        """
        is_of_agent = has_agents and len(self.element) > 1 and not self.name.startswith("engine ")
        return self.element[1] if is_of_agent else None

    def place(self, has_agents: bool) -> str:
        """Describes the element, such as "environment 3, agent 2, observation[5]".

        Args:
            has_agents: whether the second axis of results is that of agents, as in a `MultiAgentEnv`.
        """
        agent = self.agent(has_agents)
        owners = [f"environment {k}" for k in self.element[:1]] + ([] if agent is None else [f"agent {agent}"])
        return ", ".join([*owners, self.name + "".join(f"[{k}]" for k in self.element[len(owners) :])])


def exceeds_tolerance(expected: ArrayLike, actual: ArrayLike) -> NDArray[np.bool_]:
    """Returns which elements differ: floats by more than 1e-5 * max(1, |expected|), others by any amount; nan equals nan.

    Args:
        expected: (...,) array or a scalar.
        actual: an array of the same shape, whose dtype determines the rule.

    Returns:
        (...,) bool.
    """
    expected, actual = np.asarray(expected), np.asarray(actual)
    if actual.dtype.kind != "f":
        return np.asarray(expected != actual)
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    is_close = np.isclose(b, a, rtol=0.0, atol=TOLERANCE, equal_nan=True) | np.isclose(b, a, rtol=TOLERANCE, atol=0.0)
    return np.asarray(~is_close)


def differs_in_bits(expected: NDArray[Any], actual: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns which elements are not bit-identical. For example, -0.0 differs from 0.0.

    Args:
        expected: (...,) array.
        actual: an array of the same shape and dtype.

    Returns:
        (...,) bool.
    """
    unsigned = f"u{expected.dtype.itemsize}"
    return np.asarray(np.ascontiguousarray(expected).view(unsigned) != np.ascontiguousarray(actual).view(unsigned))


def differences(
    expected: Mapping[str, NDArray[Any]],
    actual: Mapping[str, NDArray[Any]],
    unequal: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]] = exceeds_tolerance,
) -> list[Difference]:
    """Returns the first difference of each environment that has one, ordered by environment.

    Args:
        expected: {name: (E, ...) array}. For each environment the first name with a difference is reported.
        actual: the arrays to compare with them.
        unequal: returns which elements of two arrays differ.
    """
    if expected.keys() != actual.keys():
        return [Difference("names of the results", (), ", ".join(expected), ", ".join(actual))]
    first: dict[int, Difference] = {}
    for name, a in expected.items():
        b = actual[name]
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return [Difference(name, (), f"{a.dtype}{list(a.shape)}", f"{b.dtype}{list(b.shape)}")]
        for element in map(tuple, np.argwhere(unequal(a, b)).tolist()):
            if element[0] not in first:
                first[element[0]] = Difference(name, element, str(a[element]), str(b[element]))
    return [first[env] for env in sorted(first)]
