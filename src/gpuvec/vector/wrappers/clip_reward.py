"""`ClipReward`: rewards clipped to given bounds."""

from __future__ import annotations

import math
from typing import Any

from gymnasium.error import InvalidBound
from gymnasium.vector import VectorEnv

from gpuvec.vector.wrappers.base import Out, Step, Wrapper, require_number, write_to_out
from gpuvec.vector.wrappers.namespace import Namespace


class ClipReward(Wrapper):
    """Clips rewards to [min_reward, max_reward].

    Args:
        env: the environment.
        min_reward: the lower bound; None for none.
        max_reward: the upper bound; None for none.

    Raises:
        gymnasium.error.InvalidBound: both bounds are None, or the lower one is above the upper one.
    """

    def __init__(self, env: VectorEnv, min_reward: float | None = None, max_reward: float | None = None) -> None:
        super().__init__(env)
        if min_reward is None and max_reward is None:
            raise InvalidBound("min_reward and max_reward are both None: give at least one bound.")
        for name, bound in (("min_reward", min_reward), ("max_reward", max_reward)):
            if bound is not None:
                require_number(bound, name, "a number or None", -math.inf)
        if min_reward is not None and max_reward is not None and not min_reward <= max_reward:
            raise InvalidBound(f"min_reward ({min_reward}) must not be above max_reward ({max_reward}).")
        self._bounds = min_reward, max_reward

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps the environment and clips the rewards.

        Args:
            actions: the actions of all rows.
            out: arrays to write to; `out["reward"]` gets the clipped rewards.
        """
        obs, reward, terminated, truncated, info = super().step(actions, out)
        clipped = Namespace(reward).xp.clip(reward, *self._bounds)
        return obs, write_to_out(clipped, "reward", out), terminated, truncated, info
