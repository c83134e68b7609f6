"""The order in which sums and extrema combine the elements of an index set, for kernels and for the reference in Python."""

from __future__ import annotations

import math

import numpy as np

from gpuvec.engine.compiler.types import DType

COMBINE = {"sum": "t(x + y)", "min": "y if y < x else x", "max": "y if y > x else x"}  # {kind: source of the combination}
FEW_LANES, MANY_LANES = 32, 256
MANY_ELEMENTS = 4096  # from which on a set has many lanes


def count_lanes(num_elements: int) -> int:
    """Returns the number of lanes L for a set of so many elements, a power of two.

    Args:
        num_elements: the size of the set.
    """
    lanes = MANY_LANES if num_elements >= MANY_ELEMENTS else FEW_LANES
    return min(lanes, 1 << (num_elements - 1).bit_length())


def result_of_none(kind: str, dtype: DType) -> int | float | bool:
    """Returns the result of a reduction of no elements.

    Args:
        kind: "count", "any", "all", "argmin", "sum", "min" or "max".
        dtype: the type of the result.
    """
    results = {"count": 0, "any": False, "all": True, "argmin": -1}
    return results[kind] if kind in results else identity_of(kind, dtype)


def identity_of(kind: str, dtype: DType) -> int | float:
    """Returns the number that a combination with another one does not change.

    Args:
        kind: "sum", "min" or "max".
        dtype: float32 or int32.
    """
    if kind == "sum":
        return 0
    if dtype is np.float32:
        return math.inf if kind == "min" else -math.inf
    limits = np.iinfo(np.int32)
    return limits.max if kind == "min" else limits.min
