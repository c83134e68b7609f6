"""The base class of wrappers that transform continuous actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.native_arrays import export_errors
from gpuvec.vector.spaces import batched_space
from gpuvec.vector.wrappers.base import Out, Step, Wrapper, require_box
from gpuvec.vector.wrappers.wrapper_state import WrapperState


class BoxActionWrapper(Wrapper):
    """Passes `transform(actions)` to the environment in place of actions (E, K).

    Args:
        env: the environment, whose action space is a Box.
        low: lower bounds of the actions that the wrapper takes, a scalar or (K,).
        high: upper bounds of these actions, a scalar or (K,).
        constants: arrays that `transform` reads, scalars or (K,); they are moved to the device of the actions.

    Raises:
        WrapperError: the action space is no Box.
    """

    def __init__(self, env: VectorEnv, low: Any, high: Any, /, **constants: Any) -> None:
        super().__init__(env)
        shape = require_box(env.single_action_space, "the action space").shape
        self.single_action_space = gym.spaces.Box(low, high, shape, np.float32)
        self.action_space = batched_space(self.single_action_space, env.num_envs)
        self._constants = WrapperState(**{name: np.asarray(value, np.float32) for name, value in constants.items()})

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps with the transformed actions.

        Args:
            actions: (E, K) float32.
            out: arrays to write to, as in `gpuvec.VectorEnv.step`.
        """
        self._constants.place(actions)
        with export_errors(actions):
            transformed = self.transform(self._constants.ns.asarray(actions))
        return super().step(transformed, out)

    def transform(self, actions: Any) -> Any:
        """Returns the actions that the environment takes, (E, K).

        Args:
            actions: the actions that the wrapper takes, (E, K).
        """
        raise NotImplementedError
