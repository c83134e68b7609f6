"""The action mask of an environment: which actions are allowed at an observation.

Letters: E environments, A agents, N actions, or values of all components of a MultiDiscrete action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.environments import TrainingEnv, spaces_of_agent


def action_mask_shape(env: TrainingEnv) -> Any:
    """Returns the shape of the action masks that an environment declares, (N,) or (A, N); None for one without masks.

    If spaces are by role it is {role: (n, N)}, for the roles that have masks.

    Args:
        env: the environment.

    Raises:
        ValueError: masks for an action space that has none.
    """
    shapes = env.action_mask_shape
    for role in shapes if isinstance(shapes, Mapping) else [ALL] if shapes is not None else []:
        _, space = spaces_of_agent(env, role)
        if isinstance(space, gym.spaces.Box):
            raise ValueError(
                f"the environment has an action mask, and its actions are {space}; only discrete actions have one."
            )
    return shapes


def require_action_mask(infos: Mapping[str, Any], num_envs: int, shape: Any) -> None:
    """Checks that the infos of a reset have the action masks that the environment declares.

    Args:
        infos: of the reset.
        num_envs: E.
        shape: the result of `action_mask_shape`.

    Raises:
        ValueError: no masks, masks of another shape, or masks that the environment does not declare.
        TypeError: masks that are not bool.
    """
    masks = infos.get("action_mask")
    if (masks is None) != (shape is None):
        has, declared = ("has none" if masks is None else "has masks"), ("none" if shape is None else f"{shape}")
        raise ValueError(
            f"infos {has} of actions, and action_mask_shape of the environment is {declared}: a wrapper that adds or removes "
            "action masks must have this attribute, (N,) or (A, N), or None without masks."
        )
    if masks is None:
        return
    pairs = [(masks[role], shape[role]) for role in shape] if isinstance(shape, Mapping) else [(masks, shape)]
    for mask, expected in pairs:
        if tuple(mask.shape) != (num_envs, *expected):
            raise ValueError(f"infos['action_mask'] has shape {tuple(mask.shape)}; it must have shape {(num_envs, *expected)}.")
        if mask.dtype != torch.bool:
            raise TypeError(f"infos['action_mask'] must be bool, got {mask.dtype}.")
