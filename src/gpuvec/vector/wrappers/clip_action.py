"""`ClipAction`: actions clipped to the bounds of the action space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.wrappers.base import require_box
from gpuvec.vector.wrappers.box_action import BoxActionWrapper


class ClipAction(BoxActionWrapper):
    """Takes any float actions (E, K) and clips each component to the environment's Box.

    Args:
        env: the environment.

    Raises:
        WrapperError: the action space is no Box.
    """

    def __init__(self, env: VectorEnv) -> None:
        space = require_box(env.single_action_space, "the action space")
        super().__init__(env, -np.inf, np.inf, low=space.low, high=space.high)

    def transform(self, actions: Any) -> Any:
        """Returns the clipped actions, (E, K).

        Args:
            actions: (E, K).
        """
        return self._constants.ns.xp.clip(actions, self._constants["low"], self._constants["high"])
