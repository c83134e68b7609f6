"""The options of a rollout: how its actions are chosen, and how they are stored."""

from __future__ import annotations

import math
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

from gpuvec.engine.compiler.types import DType
from gpuvec.engine.layout.action_access import action_bounds
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.spec import SingleAgentEnv

# Actions drawn uniformly from the action space, and actions that the caller passes as an array.
RANDOM, ACTION_ARRAY = "random", "array"
Policy: TypeAlias = str | FunctionType  # RANDOM, ACTION_ARRAY, or a function `policy(obs, key, p) -> action`
# The stored value of an action that does not fit into uint8. No space whose actions are stored as uint8 contains it.
OUT_OF_BYTE = 255


class RolloutRequest(NamedTuple):
    """The scalars of a rollout."""

    steps: int  # T


ROLLOUT_REQUEST_DTYPES = (np.int64,)


def stored_action_dtype(space: gym.Space[Any]) -> DType:
    """Returns the dtype in which a policy's actions of `space` are stored."""
    if isinstance(space, gym.spaces.Box):
        return np.float32
    lows, highs = action_bounds(space)
    return np.uint8 if min(lows) >= 0 and max(highs) < OUT_OF_BYTE else np.int32


def is_unbounded(space: gym.Space[Any]) -> bool:
    """Returns whether `space` is infinite in a component, so that no distribution is uniform over it."""
    return not all(math.isfinite(bound) for bounds in action_bounds(space) for bound in bounds)


def rollout_kernel_options(
    env: SingleAgentEnv, options: KernelOptions, policy: Policy, array_dtype: DType = None
) -> KernelOptions:
    """Returns `options` with the dtype of a rollout's actions.

    Args:
        env: the environment.
        options: what its kernels are compiled for.
        policy: chooses the actions.
        array_dtype: the dtype of the actions if `policy` is ACTION_ARRAY.
    """
    return options._replace(
        action_dtype=array_dtype if policy == ACTION_ARRAY else stored_action_dtype(env.spaces(env.params)[1])
    )
