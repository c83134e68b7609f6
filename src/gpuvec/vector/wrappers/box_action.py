"""What wrappers that change continuous actions share."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.spaces import batched_space
from gpuvec.vector.wrappers.base import Out, Step, Wrapper, box
from gpuvec.vector.wrappers.wrapper_state import WrapperState


class BoxActionWrapper(Wrapper):
    """Gives the environment `change(actions)` in place of actions (E, K).

    Args:
        low, high: bounds of the actions that the wrapper takes, scalars or (K,).
        constants: what `change` needs, scalars or (K,), kept where the actions lie.
    """

    def __init__(self, env: VectorEnv, low: Any, high: Any, /, **constants: Any) -> None:
        super().__init__(env)
        shape = box(env.single_action_space, "the action space").shape
        self.single_action_space = gym.spaces.Box(low, high, shape, np.float32)
        self.action_space = batched_space(self.single_action_space, env.num_envs)
        self._constants = WrapperState(**{name: np.asarray(value, np.float32) for name, value in constants.items()})

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps with the changed actions."""
        self._constants.place(actions)
        return super().step(self.change(self._constants.ns.asarray(actions)), out)

    def change(self, actions: Any) -> Any:
        """The actions that the environment gets."""
        raise NotImplementedError
