"""Checks that parameters on which shapes depend are in `structural`, so that they do not change once buffers exist."""

from __future__ import annotations

import dataclasses

from gpuvec.engine.layout.structure import shape_differences
from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment


def check_structural(env: Environment) -> str:
    """Varies each parameter that is not in `structural`, and compares all shapes: agents, spaces, fields, tables, neighbors.

    Values for which the environment's `check` or a function of its declaration raises an error are skipped.

    Args:
        env: the environment.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a shape depends on a parameter that is not in `structural`.
    """
    structural = env.structural
    num_varied = 0
    for name, value in env.params._asdict().items():
        others = [other for other in _other_values(value) if name not in structural]
        for other in others:
            try:
                changed = dataclasses.replace(env, params=env.params._replace(**{name: other}))
                if env.check is not None:
                    env.check(changed.params)
                changes = shape_differences(env, changed)
            except (ArithmeticError, AssertionError, AuthoringError, LookupError, TypeError, ValueError):
                continue  # values that make no sense together
            num_varied += 1
            if changes:
                problem = f"shapes depend on parameter {name!r}: with {other!r} {'; '.join(changes)}"
                raise AuthoringError(f"{problem}; put {name!r} into structural=(...).")
    return f"with {num_varied} other values of parameters that are not structural all shapes stay the same"


def _other_values(value: float) -> list[float]:
    """Other values of the same type, near the value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 2 * value + 1]
    return [value * 1.1 if value else 0.1, value * 0.9 if value else -0.1, value + 1.0, value - 1.0, value * 2.0]
