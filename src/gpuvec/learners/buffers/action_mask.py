"""The action mask of an environment: which actions are allowed at an observation.

Letters: E environments, A agents, N actions, or values of all components of a MultiDiscrete action.
"""

from __future__ import annotations

import gymnasium as gym
import torch

from gpuvec.learners.environments import TrainingEnv, is_multi_agent
from gpuvec.learners.networks.actor_critic import outputs_of
from gpuvec.vector.spaces import space_of_one_agent


def action_mask_shape(env: TrainingEnv) -> tuple[int, ...] | None:
    """Returns the shape of an environment's `infos["action_mask"]`, (N,) or (A, N); None for an environment without masks.

    Args:
        env: the environment, which is reset, because only the infos of a reset or a step show whether there are masks.

    Raises:
        ValueError: masks of another shape, or for an action space that has none.
        TypeError: masks that are not bool.
    """
    obs, infos = env.reset(seed=0)
    if "action_mask" not in infos:
        return None
    mask, is_multi, space = infos["action_mask"], is_multi_agent(env), env.single_action_space
    space = space_of_one_agent(space) if is_multi else space
    if isinstance(space, gym.spaces.Box):
        raise ValueError(f"the environment has an action mask, and its actions are {space}; only discrete actions have one.")
    expected = (*obs.shape[: 2 if is_multi else 1], outputs_of(space))
    if tuple(mask.shape) != expected:
        raise ValueError(f"infos['action_mask'] has shape {tuple(mask.shape)}; for {space} it must have shape {expected}.")
    if mask.dtype != torch.bool:
        raise TypeError(f"infos['action_mask'] must be bool, got {mask.dtype}.")
    return expected[1:]
