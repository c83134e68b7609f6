"""Actions in other units than the environment's."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.error import InvalidBound
from gymnasium.vector import VectorEnv

from gpuvec.vector.wrappers.base import box
from gpuvec.vector.wrappers.box_action import BoxActionWrapper


class RescaleAction(BoxActionWrapper):
    """Takes actions (E, K) in [min_action, max_action] and maps them linearly onto the environment's Box [low, high].

    Actions outside are mapped by the same line, so to outside the Box: put a `ClipAction` inside if that matters.

    Args:
        min_action, max_action: scalars or (K,).

    Raises:
        gymnasium.error.InvalidBound: min_action is not below max_action, or a bound, given or the environment's, is not finite.
        WrapperError: actions are no Box.
    """

    def __init__(self, env: VectorEnv, min_action: Any = -1.0, max_action: Any = 1.0) -> None:
        space = box(env.single_action_space, "the action space")
        lowest, highest = (np.broadcast_to(np.asarray(x, np.float64), space.shape) for x in (min_action, max_action))
        if not (np.isfinite(lowest).all() and np.isfinite(highest).all() and (lowest < highest).all()):
            raise InvalidBound(f"min_action ({min_action}) must be below max_action ({max_action}), both finite.")
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise InvalidBound(f"only an action space with finite bounds can be rescaled, got {space}.")
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        gradient = (high - low) / (highest - lowest)
        super().__init__(
            env, lowest.astype(np.float32), highest.astype(np.float32), gradient=gradient, intercept=low - gradient * lowest
        )

    def change(self, actions: Any) -> Any:
        """The actions in the environment's units."""
        return actions * self._constants["gradient"] + self._constants["intercept"]
