"""Who chooses the actions of a rollout, how many it takes, and as what they are kept."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gpuvec.engine.layout.action_access import action_bounds
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.spec import SingleAgentEnv

RANDOM, GIVEN = "random", "given"  # a policy is one of these, or a function `policy(obs, key, p) -> action`
BYTE = 255  # what does not fit into a byte is kept as this, which no space allows whose actions are kept in bytes


class RolloutRequest(NamedTuple):
    """What a rollout is asked for."""

    steps: int  # T


ROLLOUT_REQUEST_DTYPES = (np.int64,)


def stored_action_dtype(space: gym.Space[Any]) -> Any:
    """The dtype in which the actions of a policy are kept."""
    if isinstance(space, gym.spaces.Box):
        return np.float32
    lows, highs = action_bounds(space)
    return np.uint8 if min(lows) >= 0 and max(highs) < BYTE else np.int32


def is_unbounded(space: gym.Space[Any]) -> bool:
    """Whether no distribution is uniform over it."""
    return not all(math.isfinite(x) for part in action_bounds(space) for x in part)


def rollout_kernel_options(env: SingleAgentEnv, options: KernelOptions, policy: Any, given_dtype: Any = None) -> KernelOptions:
    """`options` for a rollout: with the dtype of the actions that are given, or else stored."""
    return options._replace(action_dtype=given_dtype if policy == GIVEN else stored_action_dtype(env.spaces(env.params)[1]))
