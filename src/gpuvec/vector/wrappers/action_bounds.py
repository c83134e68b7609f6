"""What wrappers that change continuous actions share: bounds that lie where the actions do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from gpuvec.vector.spaces import batched
from gpuvec.vector.wrappers.base import Out, Step, Wrapper, box
from gpuvec.vector.wrappers.buffers import Buffers


class BoxActionWrapper(Wrapper):
    """Replaces actions (E, K) by `change(actions)`, beside whose constants (K,) they are brought.

    Args:
        low, high: (K,) the bounds of the actions that the wrapper takes.
        constants: (K,) arrays by name, kept on the device.
    """

    def __init__(self, env: VectorEnv, low: Any, high: Any, **constants: Any) -> None:
        super().__init__(env)
        inner = box(env.single_action_space, "the action space")
        self.single_action_space = gym.spaces.Box(low, high, inner.shape, np.float32)
        self.action_space = batched(self.single_action_space, env.num_envs)
        self._constants = Buffers(**{name: np.asarray(value, np.float32) for name, value in constants.items()})

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets."""
        obs, info = super().reset(seed=seed, options=options)
        self._constants.place(obs)
        return obs, info

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps with the changed actions."""
        self._constants.place(actions)
        return super().step(self.change(self._constants.ns.asarray(actions)), out)

    def change(self, actions: Any) -> Any:
        """The actions that the environment gets."""
        raise NotImplementedError
