"""Checks of parameters that several environments share; they raise ValueError."""

import math
from typing import Any

import numpy as np


def positive(p: Any, *names: str) -> None:
    """Each named parameter is above zero."""
    for name in names:
        if not getattr(p, name) > 0.0:
            raise ValueError(f"{name} is {getattr(p, name)}; it must be greater than 0.")


def not_negative(p: Any, *names: str) -> None:
    """Each named parameter is zero or above."""
    for name in names:
        if not getattr(p, name) >= 0.0:
            raise ValueError(f"{name} is {getattr(p, name)}; it must be at least 0.")


def at_least_one(p: Any, *names: str) -> None:
    """Each named parameter, a number of things, is 1 or more."""
    for name in names:
        if not getattr(p, name) >= 1:
            raise ValueError(f"{name} is {getattr(p, name)}; it must be at least 1.")


def finite(p: Any, *names: str) -> None:
    """Each named parameter is a number, and not infinite."""
    for name in names:
        if not math.isfinite(getattr(p, name)):
            raise ValueError(f"{name} is {getattr(p, name)}; it must be finite.")


def less_than_a_turn(p: Any, *names: str) -> None:
    """Each named parameter is an angle [rad] of less than a turn to either side, as a float32 too."""
    for name in names:
        angle = getattr(p, name)
        if not abs(np.float32(angle)) < np.float32(2.0 * math.pi):
            raise ValueError(f"{name} is {angle}; it must be less than a full turn to either side, 2 pi = 6.2831853.")


def ordered(p: Any, low: str, high: str) -> None:
    """The parameter named `low` is at most the one named `high`."""
    lower, higher = getattr(p, low), getattr(p, high)
    if not lower <= higher:
        raise ValueError(f"Lower bound ({lower}) must be lower than higher bound ({higher}): {low} and {high}.")
