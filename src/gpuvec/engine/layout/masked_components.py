"""The components of an action that the author's function `allowed` restricts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from gpuvec.engine.layout.function_checks import with_line_of
from gpuvec.errors import AuthoringError
from gpuvec.phases import ByRole
from gpuvec.spec import Environment


def masked_components(env: Environment, action_space: Any, role: str | None = None) -> tuple[int, ...] | None:
    """Returns the numbers of the components that have masks, () if there are no masks, or None if all components have one.

    Args:
        env: the environment.
        action_space: the action space of one agent.
        role: the role of the agent if spaces are by role; otherwise None.

    Raises:
        AuthoringError: `masked_components` without `allowed`, for another space than MultiDiscrete, or with wrong numbers.
    """
    has_masks = env.allowed is not None if role is None else role in _masked_roles(env)
    if env.masked_components is None:
        return None if has_masks else ()
    with with_line_of(env.masked_components):
        components = _declared_components(env, action_space, role)
    if components is None:
        return None if has_masks else ()
    return tuple(sorted(components))


def _declared_components(env: Environment, action_space: Any, role: str | None) -> tuple[int, ...] | None:
    """What `masked_components(p)` returns for an agent, None if it returns nothing for its role."""
    assert env.masked_components is not None, "the environment declares them"
    if env.allowed is None:
        raise AuthoringError("masked_components(p) names components that allowed(...) restricts, and there is no allowed.")
    components: Any = env.masked_components(env.params)
    place, roles = "", _masked_roles(env)
    if role is not None:
        if not isinstance(components, Mapping) or not components.keys() <= set(roles):
            raise AuthoringError(
                f"masked_components(p) returned {components!r}; since spaces(p) is by role, it must return "
                f"{{role: numbers of components}} for roles that have allowed: {', '.join(map(repr, roles))}."
            )
        if role not in components:
            return None
        components, place = components[role], f" for role {role!r}"
    if not isinstance(action_space, gym.spaces.MultiDiscrete):
        raise AuthoringError(
            f"masked_components(p) is for MultiDiscrete actions, and the action space{place} is {action_space}: remove it."
        )
    count = len(action_space.nvec)
    is_valid = isinstance(components, tuple) and all(type(k) is int and 0 <= k < count for k in components)
    if not is_valid or len(set(components)) < len(components):
        raise AuthoringError(
            f"masked_components(p) returned {components!r}{place}; it must return a tuple of different numbers of components, "
            f"0 to {count - 1}, or () for no masks."
        )
    return components  # type: ignore[no-any-return]  # checked


def has_action_masks(env: Environment) -> bool:
    """Returns whether the environment has masks with its parameters.

    Args:
        env: the environment.
    """
    if env.allowed is None or env.masked_components is None:
        return env.allowed is not None
    components = env.masked_components(env.params)
    if isinstance(components, Mapping):
        return any(components.get(role) != () for role in _masked_roles(env))
    return len(components) > 0


def _masked_roles(env: Environment) -> tuple[str, ...]:
    """The roles that have a function `allowed` of their own."""
    return tuple(env.allowed.roles) if isinstance(env.allowed, ByRole) else ()
