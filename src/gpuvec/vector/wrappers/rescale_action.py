"""`RescaleAction`: actions scaled from an interval of the user's choice to the environment's bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import InvalidBound
from gymnasium.vector import VectorEnv

from gpuvec.vector.wrappers.base import require_box
from gpuvec.vector.wrappers.box_action import BoxActionWrapper


class RescaleAction(BoxActionWrapper):
    """Takes actions (E, K) in [min_action, max_action] and maps them linearly onto the environment's Box [low, high].

    The map is not clipped: actions outside the interval become actions outside the Box. Put a `ClipAction` inside if that
    matters.

    Args:
        env: the environment.
        min_action: the actions that become `low`, a scalar or (K,).
        max_action: the actions that become `high`, a scalar or (K,).

    Raises:
        gymnasium.error.InvalidBound: min_action is not below max_action, or a bound is not finite.
        WrapperError: the action space is no Box.
    """

    def __init__(self, env: VectorEnv, min_action: Any = -1.0, max_action: Any = 1.0) -> None:
        space = require_box(env.single_action_space, "the action space")
        inner_low, inner_high = space.low.astype(np.float64), space.high.astype(np.float64)
        try:
            outer_low, outer_high = (np.broadcast_to(np.asarray(x, np.float64), space.shape) for x in (min_action, max_action))
        except Exception as error:  # NumPy and other libraries have errors of their own for what has no numbers
            raise InvalidBound(
                f"min_action ({min_action}) and max_action ({max_action}) must be numbers, or arrays of shape {space.shape}."
            ) from error
        if not (np.isfinite(outer_low).all() and np.isfinite(outer_high).all() and (outer_low < outer_high).all()):
            raise InvalidBound(f"min_action ({min_action}) must be below max_action ({max_action}), both finite.")
        if not (np.isfinite(inner_low).all() and np.isfinite(inner_high).all()):
            raise InvalidBound(f"only an action space with finite bounds can be rescaled, got {space}.")
        gradient = (inner_high - inner_low) / (outer_high - outer_low)
        intercept = inner_low - gradient * outer_low
        super().__init__(
            env, outer_low.astype(np.float32), outer_high.astype(np.float32), gradient=gradient, intercept=intercept
        )

    def transform(self, actions: Any) -> Any:
        """Returns the actions in the environment's units, (E, K).

        Args:
            actions: (E, K).
        """
        return actions * self._constants["gradient"] + self._constants["intercept"]
