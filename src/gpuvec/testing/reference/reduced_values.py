"""The results of reductions in plain Python, with floats rounded in the order of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuvec.engine.layout.reduction_order import COMBINE, count_lanes, identity_of


def reduce(kind: str, values: Sequence[Any], dtype: Any = np.int32) -> float | int | bool:
    """Computes the result of a reduction.

    Args:
        kind: "argmin", "any", "all", "count", "sum", "min" or "max".
        values: N values, one of each element.
        dtype: the type of the result.
    """
    if kind in COMBINE:
        return tree_reduce(kind, values, dtype)
    if kind == "argmin":
        pairs = [(np.float32(value), i) for i, value in enumerate(values)]
        return min((pair for pair in pairs if pair[0] < np.inf), default=(np.inf, -1))[1]
    flags = [bool(value) for value in values]
    return any(flags) if kind == "any" else all(flags) if kind == "all" else sum(flags)


def tree_reduce(kind: str, values: Sequence[Any], dtype: Any) -> float | int:
    """Combines numbers in lanes and then in a tree, as kernels do.

    Args:
        kind: "sum", "min" or "max".
        values: N numbers.
        dtype: float32 or int32.
    """
    lanes = [dtype(identity_of(kind, dtype))] * count_lanes(len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        for n, value in enumerate(values):
            lanes[n % len(lanes)] = _combine(kind, lanes[n % len(lanes)], dtype(value))
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [_combine(kind, x, y) for x, y in zip(lanes[:half], lanes[half:], strict=True)]
    result: float | int = lanes[0].item()
    return result


def _combine(kind: str, x: Any, y: Any) -> Any:
    if kind == "sum":
        return x + y
    return (y if y < x else x) if kind == "min" else (y if y > x else x)
