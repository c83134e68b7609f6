"""The layout of observations and actions in memory, from their spaces."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.errors import AuthoringError


class ActionLayout(NamedTuple):
    """The layout of an agent's action.

    Attributes:
        components: K; 0 for a scalar.
        discrete: whether components are integers.
    """

    components: int
    discrete: bool

    @property
    def dtype(self) -> DType:
        """The type of a component as an argument of the author's functions: int32 or float32."""
        return np.int32 if self.discrete else np.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one agent's action, (K,) or ()."""
        return (self.components,) if self.components else ()


def observation_features(observation: gym.Space[Any]) -> int:
    """Returns the number of features D of the space `observation`.

    Raises:
        AuthoringError: the space is not a Box of shape (D,) and dtype float32.
    """
    if not isinstance(observation, gym.spaces.Box) or len(observation.shape) != 1 or observation.dtype != np.float32:
        raise AuthoringError(f"the observation space is {observation}; it must be a Box of shape (D,) and dtype float32.")
    return observation.shape[0]


def make_action_layout(space: gym.Space[Any]) -> ActionLayout:
    """Returns the layout of the actions of `space`.

    Raises:
        AuthoringError: the space is not Discrete, MultiDiscrete of shape (K,) or Box of shape (K,), or is beyond int32.
    """
    limits = np.iinfo(np.int32)
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        counts = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        pairs = [(int(first), int(count)) for first, count in zip(np.ravel(space.start), np.ravel(counts), strict=True)]
        if any(first < limits.min or first + count - 1 > limits.max for first, count in pairs):
            raise AuthoringError(
                f"the action space is {space}; its actions must be int32, from {limits.min} to {limits.max}: use a smaller one."
            )
    if isinstance(space, gym.spaces.Discrete):
        return ActionLayout(0, True)
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.Box) and len(space.shape) == 1:
        return ActionLayout(space.shape[0], isinstance(space, gym.spaces.MultiDiscrete))
    raise AuthoringError(f"the action space is {space}; it must be Discrete, MultiDiscrete of shape (K,) or Box of shape (K,).")
