"""Batched spaces whose bounds are views: those of many large environments would take gigabytes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space


def batched(space: gym.Space[Any], num_envs: int) -> gym.Space[Any]:
    """`gymnasium.vector.utils.batch_space(space, num_envs)`, with stride-0 bounds where it is a Box."""
    if not isinstance(space, gym.spaces.Box):
        return batch_space(space, num_envs)
    box = batch_space(space, 1)
    shape = (num_envs, *space.shape)
    box._shape = shape
    for name in ("low", "high", "bounded_below", "bounded_above"):
        setattr(box, name, np.broadcast_to(getattr(space, name), shape))
    return box
