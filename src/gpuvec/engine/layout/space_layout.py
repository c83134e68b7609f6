"""The layout of observations and actions in memory, from their spaces."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.errors import AuthoringError

IMAGE_AXES = 3  # (C, H, W)
MAX_TUPLE_COMPONENTS = 16  # of an action that many agents' functions receive as a tuple


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
    def is_long(self) -> bool:
        """Whether functions of a multi-agent environment receive an action as an array, since a tuple would fill registers."""
        return self.components > MAX_TUPLE_COMPONENTS

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one agent's action, (K,) or ()."""
        return (self.components,) if self.components else ()


class ObservationLayout(NamedTuple):
    """The layout of an agent's observation.

    Attributes:
        shape: (D,) or, for an image, (C, H, W).
        dtype: float32, or uint8 for an image.
    """

    shape: tuple[int, ...]
    dtype: DType = np.float32

    @property
    def is_image(self) -> bool:
        """Whether observations are images."""
        return len(self.shape) == IMAGE_AXES

    @property
    def pixels_per_word(self) -> int:
        """The number of neighboring pixels of a channel that are stored at once: 4 or 2 of uint8, if they divide a channel."""
        if not self.is_image or self.dtype is not np.uint8:
            return 1
        return next(k for k in (4, 2, 1) if math.prod(self.shape[1:]) % k == 0)

    @property
    def num_features(self) -> int:
        """The number of elements, D or C * H * W."""
        return math.prod(self.shape)


def make_observation_layout(observation: gym.Space[Any]) -> ObservationLayout:
    """Returns the layout of the observations of the space `observation`.

    Raises:
        AuthoringError: the space is not a Box of shape (D,) and dtype float32, or (C, H, W) and dtype uint8 or float32.
    """
    if isinstance(observation, gym.spaces.Box):
        dtypes: dict[int, tuple[DType, ...]] = {1: (np.float32,), IMAGE_AXES: (np.uint8, np.float32)}
        for dtype in dtypes.get(len(observation.shape), ()):
            if observation.dtype == dtype:
                return ObservationLayout(observation.shape, dtype)
    raise AuthoringError(
        f"the observation space is {observation}; it must be a Box of shape (D,) and dtype float32, or for images a Box of "
        "shape (channels, height, width) and dtype uint8 or float32."
    )


def mask_size(space: gym.Space[Any]) -> int:
    """Returns N, the number of elements of an action mask for the action `space` of one agent.

    Raises:
        AuthoringError: the space is a Box, whose actions cannot be masked.
    """
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    raise AuthoringError(f"the action space is {space}; allowed(...) is for Discrete and MultiDiscrete actions: remove it.")


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
