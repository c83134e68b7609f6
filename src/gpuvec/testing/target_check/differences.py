"""Finds where two results differ: floats by more than a tolerance, flags and integers by any amount."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuvec.testing.target_check.result_layout import ResultLayout

TOLERANCE = 1e-5  # of floats, absolute up to 1 and relative above


class Difference(NamedTuple):
    """The first element in which the results of an environment differ."""

    name: str  # the name of the array, such as "observation" or "state x"
    element: tuple[int, ...]  # the index in the array, the environment first; empty if the shapes or the dtypes differ
    expected: str
    actual: str

    def place(self, layout: ResultLayout) -> str:
        """Describes the element, such as "environment 3, agent 2, observation[5]".

        Args:
            layout: the owners of the elements of results.
        """
        agent = layout.agent(self.name, self.element) if self.element else None
        owners = [f"environment {k}" for k in self.element[:1]] + ([] if agent is None else [f"agent {agent}"])
        return ", ".join([*owners, self.name + "".join(f"[{k}]" for k in self.element[len(owners) :])])


def exceeds_tolerance(expected: ArrayLike, actual: ArrayLike, tolerance: float = TOLERANCE) -> NDArray[np.bool_]:
    """Returns which elements differ: floats by more than tolerance * max(1, |expected|), others by any amount; nan equals nan.

    Args:
        expected: (...,) array or a scalar.
        actual: an array of the same shape, whose dtype determines the rule.
        tolerance: of floats.

    Returns:
        (...,) bool.
    """
    expected, actual = np.asarray(expected), np.asarray(actual)
    is_unequal = np.asarray(expected != actual)
    if actual.dtype.kind != "f":
        return is_unequal
    # Most elements of large arrays are equal, so that the tolerance is computed for few of them.
    a, b = expected[is_unequal].astype(np.float64), actual[is_unequal].astype(np.float64)
    is_finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):  # of infinity minus infinity
        is_close = is_finite & (np.abs(b - a) <= tolerance * np.maximum(1.0, np.abs(a)))
    is_unequal[is_unequal] = ~(is_close | (np.isnan(a) & np.isnan(b)))
    return is_unequal


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
        is_unequal = unequal(a, b)
        for env in np.flatnonzero(is_unequal.reshape(len(a), -1).any(1)).tolist() if is_unequal.any() else ():
            if env not in first:
                element = (env, *map(int, np.unravel_index(is_unequal[env].argmax(), a.shape[1:])))
                first[env] = Difference(name, element, str(a[element]), str(b[element]))
    return [first[env] for env in sorted(first)]
