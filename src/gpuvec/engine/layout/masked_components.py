"""The components of an action that the author's function `allowed` restricts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment


def masked_components(env: Environment, action_space: Any) -> tuple[int, ...] | None:
    """Returns the numbers of the components that have masks, () if there are no masks, or None if all components have one.

    Args:
        env: the environment.
        action_space: the action space of one agent, or a dict of spaces by role.

    Raises:
        AuthoringError: `masked_components` without `allowed`, for another space than MultiDiscrete, or with wrong numbers.
    """
    if env.masked_components is None:
        return None if env.allowed is not None else ()
    if env.allowed is None:
        raise AuthoringError("masked_components(p) names components that allowed(...) restricts, and there is no allowed.")
    if isinstance(action_space, Mapping) or not isinstance(action_space, gym.spaces.MultiDiscrete):
        raise AuthoringError(
            f"masked_components(p) is for MultiDiscrete actions that all agents have, and the action space is {action_space}: "
            "remove it."
        )
    components, count = env.masked_components(env.params), len(action_space.nvec)
    is_valid = isinstance(components, tuple) and all(type(k) is int and 0 <= k < count for k in components)
    if not is_valid or len(set(components)) < len(components):
        raise AuthoringError(
            f"masked_components(p) returned {components!r}; it must return a tuple of different numbers of components, 0 to "
            f"{count - 1}, or () for no masks."
        )
    return tuple(sorted(components))


def has_action_masks(env: Environment) -> bool:
    """Returns whether the environment has masks with its parameters.

    Args:
        env: the environment.
    """
    return env.allowed is not None and (env.masked_components is None or len(env.masked_components(env.params)) > 0)
