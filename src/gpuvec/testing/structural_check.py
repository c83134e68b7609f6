"""Parameters on which shapes depend: each has to be in `structural`, so that nobody changes it once buffers exist."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpuvec.engine.layout.structure import shape_differences
from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment, MultiAgentEnv


def check_structural(env: Environment) -> str:
    """Varies each parameter that is not in `structural` and compares agents, spaces, fields, tables and slots.

    A value that the environment's own `check`, or a function of its declaration, refuses is left out.

    Raises:
        AuthoringError: a parameter on which one of these depends.
    """
    structural = env.structural if isinstance(env, MultiAgentEnv) else ()
    varied = 0
    for name, value in env.params._asdict().items():
        others = [other for other in _other_values(value) if name not in structural]
        for other in others:
            try:
                changed = dataclasses.replace(env, params=env.params._replace(**{name: other}))
                if env.check is not None:
                    env.check(changed.params)
                found = shape_differences(env, changed)
            except (ArithmeticError, AssertionError, AuthoringError, LookupError, TypeError, ValueError):
                continue  # values that make no sense together
            varied += 1
            if found:
                remedy = f"put {name!r} into structural=(...)"
                if not isinstance(env, MultiAgentEnv):
                    remedy = "make an environment of its own for each shape: those of a SingleAgentEnv are fixed"
                raise AuthoringError(f"parameter {name!r} shapes the environment: with {other!r} {'; '.join(found)}; {remedy}.")
    return f"with {varied} other values of parameters that are not structural all shapes stay"


def _other_values(value: Any) -> list[Any]:
    """Values near `value`, of its type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 2 * value + 1]
    return [value * 1.1 if value else 0.1, value * 0.9 if value else -0.1, value + 1.0, value - 1.0, value * 2.0]
