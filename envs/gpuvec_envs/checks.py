"""Checks of parameters, which several environments use."""

import math
from typing import Any

import numpy as np


def require_positive(p: Any, *names: str) -> None:
    """Raises ValueError unless each of the parameters is greater than 0."""
    for name in names:
        if not getattr(p, name) > 0.0:
            raise ValueError(f"{name} is {getattr(p, name)}; it must be greater than 0.")


def require_not_negative(p: Any, *names: str) -> None:
    """Raises ValueError unless each of the parameters is at least 0."""
    for name in names:
        if not getattr(p, name) >= 0.0:
            raise ValueError(f"{name} is {getattr(p, name)}; it must be at least 0.")


def require_at_least_one(p: Any, *names: str) -> None:
    """Raises ValueError unless each of the parameters, which are counts, is at least 1."""
    for name in names:
        if not getattr(p, name) >= 1:
            raise ValueError(f"{name} is {getattr(p, name)}; it must be at least 1.")


def require_finite(p: Any, *names: str) -> None:
    """Raises ValueError unless each of the parameters is finite."""
    for name in names:
        if not math.isfinite(getattr(p, name)):
            raise ValueError(f"{name} is {getattr(p, name)}; it must be finite.")


def require_less_than_a_turn(p: Any, *names: str) -> None:
    """Raises ValueError unless each of the parameters, rounded to float32, is an angle between -2 pi and 2 pi [rad]."""
    for name in names:
        angle = getattr(p, name)
        if not abs(np.float32(angle)) < np.float32(2.0 * math.pi):
            raise ValueError(f"{name} is {angle}; it must be less than a full turn to either side, 2 pi = 6.2831853.")


def require_ordered(p: Any, low: str, high: str) -> None:
    """Raises ValueError unless the parameter named `low` is at most the one named `high`."""
    lower, higher = getattr(p, low), getattr(p, high)
    if not lower <= higher:
        raise ValueError(f"Lower bound ({lower}) must be lower than higher bound ({higher}): {low} and {high}.")
