"""Rewards within bounds."""

from __future__ import annotations

from typing import Any

from gymnasium.error import InvalidBound
from gymnasium.vector import VectorEnv

from gpuvec.vector.wrappers.base import Out, Step, Wrapper, write_to_out
from gpuvec.vector.wrappers.namespace import Namespace


class ClipReward(Wrapper):
    """Clips rewards to [min_reward, max_reward]; None leaves that side open.

    Raises:
        gymnasium.error.InvalidBound: both are None, or the lower is above the upper.
    """

    def __init__(self, env: VectorEnv, min_reward: float | None = None, max_reward: float | None = None) -> None:
        super().__init__(env)
        if min_reward is None and max_reward is None:
            raise InvalidBound("min_reward and max_reward are both None: give at least one bound.")
        if min_reward is not None and max_reward is not None and not min_reward <= max_reward:
            raise InvalidBound(f"min_reward ({min_reward}) must not be above max_reward ({max_reward}).")
        self._bounds = min_reward, max_reward

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps and clips; `out["reward"]` ends up clipped."""
        obs, reward, terminated, truncated, info = super().step(actions, out)
        clipped = Namespace(reward).xp.clip(reward, *self._bounds)
        return obs, write_to_out(clipped, "reward", out), terminated, truncated, info
