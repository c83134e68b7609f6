"""Spaces of many rows or agents, whose bounds are views, since bounds of many large environments would take gigabytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space


def batched_space(space: gym.Space[Any], num_envs: int) -> gym.Space[Any]:
    """Returns `gymnasium.vector.utils.batch_space(space, num_envs)`; the bounds of a Box are views with stride 0.

    Args:
        space: the space of one row.
        num_envs: the number of rows.
    """
    if isinstance(space, gym.spaces.Dict):
        return space_by_role({role: batched_space(part, num_envs) for role, part in space.items()})
    if not isinstance(space, gym.spaces.Box):
        return batch_space(space, num_envs)
    box = batch_space(space, 1)
    shape = (num_envs, *space.shape)
    box._shape = shape
    for name in ("low", "high", "bounded_below", "bounded_above"):
        setattr(box, name, np.broadcast_to(getattr(space, name), shape))
    return box


def space_by_role(spaces: Mapping[str, gym.Space[Any]]) -> gym.spaces.Dict:
    """Returns a Dict space with the space of each role, in the order of the roles.

    Args:
        spaces: {role: space}.
    """
    return gym.spaces.Dict(OrderedDict(spaces))  # Gymnasium sorts the keys of any other dict.


def space_of_agents(space: gym.Space[Any], agents: int) -> gym.Space[Any]:
    """Returns the space of all agents of one environment: (A,) for a Discrete space, (A, K) for the others.

    Args:
        space: the space of one agent.
        agents: A.
    """
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.MultiDiscrete(np.full(agents, space.n), start=np.full(agents, space.start))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(np.tile(space.nvec, (agents, 1)), start=np.tile(space.start, (agents, 1)))
    return batched_space(space, agents)


def space_of_one_agent(space: gym.Space[Any]) -> gym.Space[Any]:
    """Returns the space of one agent; the inverse of `space_of_agents`.

    Args:
        space: the space of all agents.
    """
    if isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return gym.spaces.Discrete(int(space.nvec[0]), start=int(space.start[0]))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(space.nvec[0], start=space.start[0])
    assert isinstance(space, gym.spaces.Box), "environments have no other spaces"
    return gym.spaces.Box(space.low[0], space.high[0], dtype=space.dtype)
