"""Checks of parameters that several environments share; they raise ValueError."""

from typing import Any


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


def ordered(low: float, high: float) -> None:
    """`low` is at most `high`."""
    if not low <= high:
        raise ValueError(f"Lower bound ({low}) must be lower than higher bound ({high}).")
