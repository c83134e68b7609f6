"""Parameters on which shapes depend: each has to be in `structural`, so that it is not changed once buffers exist."""

from __future__ import annotations

import dataclasses

from gpuvec.engine.layout.structure import shape_differences
from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment, MultiAgentEnv


def check_structural(env: Environment) -> str:
    """Varies each parameter that is not in `structural` and compares shapes of agents, spaces, fields, tables and neighbors.

    Values that the environment's `check`, or a function of its declaration, refuses are skipped.

    Args:
        env: the environment.

    Returns:
        What was checked.

    Raises:
        AuthoringError: a parameter on which one of these depends.
    """
    structural = env.structural if isinstance(env, MultiAgentEnv) else ()
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
                remedy = f"put {name!r} into structural=(...)"
                if not isinstance(env, MultiAgentEnv):
                    remedy = "make an environment of its own for each shape: those of a SingleAgentEnv are fixed"
                raise AuthoringError(
                    f"parameter {name!r} shapes the environment: with {other!r} {'; '.join(changes)}; {remedy}."
                )
    return f"with {num_varied} other values of parameters that are not structural all shapes stay the same"


def _other_values(value: float) -> list[float]:
    """Values near `value`, of its type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 2 * value + 1]
    return [value * 1.1 if value else 0.1, value * 0.9 if value else -0.1, value + 1.0, value - 1.0, value * 2.0]
