"""The action mask of an environment: which actions are allowed at an observation.

Letters: E environments, A agents, N actions, or values of all components of a MultiDiscrete action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.learners.environments import TrainingEnv, is_multi_agent, spaces_of_agent
from gpuvec.learners.networks.actor_critic import outputs_of


def action_mask_shape(env: TrainingEnv) -> Any:
    """Returns the shape of an environment's `infos["action_mask"]`, (N,) or (A, N); None for an environment without masks.

    If spaces are by role it is {role: (n, N)}, for the roles that have masks.

    Args:
        env: the environment, which is reset, because only the infos of a reset or a step show whether there are masks.

    Raises:
        ValueError: masks of another shape, or for an action space that has none.
        TypeError: masks that are not bool.
    """
    obs, infos = env.reset(seed=0)
    if "action_mask" not in infos:
        return None
    masks = infos["action_mask"]
    if isinstance(masks, Mapping):
        return {role: _checked_shape(mask, obs[role], spaces_of_agent(env, role)[1], True) for role, mask in masks.items()}
    return _checked_shape(masks, obs, spaces_of_agent(env)[1], is_multi_agent(env))


def _checked_shape(mask: Tensor, obs: Tensor, space: gym.Space[Any], is_multi: bool) -> tuple[int, ...]:
    """The shape (N,) or (A, N) of the masks of environments, after checks; `space` is the action space of one agent."""
    if isinstance(space, gym.spaces.Box):
        raise ValueError(f"the environment has an action mask, and its actions are {space}; only discrete actions have one.")
    expected = (*obs.shape[: 2 if is_multi else 1], outputs_of(space))
    if tuple(mask.shape) != expected:
        raise ValueError(f"infos['action_mask'] has shape {tuple(mask.shape)}; for {space} it must have shape {expected}.")
    if mask.dtype != torch.bool:
        raise TypeError(f"infos['action_mask'] must be bool, got {mask.dtype}.")
    return expected[1:]
