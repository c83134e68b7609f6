"""A wrapper that adds an action mask to the outputs of an environment, as a learner needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.learners.networks.actor_critic import outputs_of
from gpuvec.vector.spaces import space_of_one_agent
from gpuvec.vector.wrappers.base import Wrapper

MaskFunction = Callable[[Tensor, tuple[int, ...]], Tensor]


def changing_mask(obs: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Forbids an action of each component, or none, depending on the observation.

    Args:
        obs: (..., D).
        sizes: numbers of actions of the components.

    Returns:
        (..., N) bool.
    """
    number = (obs.double().abs().sum(-1, keepdim=True) * 1000).long()
    return torch.cat([torch.arange(n, device=obs.device) != (number + k) % (n + 1) for k, n in enumerate(sizes)], -1)


class ActionMaskEnv(Wrapper):
    """An environment with `infos["action_mask"]`, which `step` also writes to `out["action_mask"]`.

    Args:
        env: the environment, with torch output.
        mask_function: returns the mask for observations and the numbers of actions of the components.
    """

    def __init__(self, env: Any, mask_function: MaskFunction = changing_mask) -> None:
        super().__init__(env)
        base = env.unwrapped
        space = space_of_one_agent(base.single_action_space) if base.is_multi_agent else base.single_action_space
        self.sizes = tuple(space.nvec) if isinstance(space, gym.spaces.MultiDiscrete) else (outputs_of(space),)
        self.mask_function = mask_function
        self.action_mask_shape = (*[base.num_agents] * base.is_multi_agent, sum(self.sizes))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments and adds the mask of their observations."""
        obs, infos = super().reset(seed=seed, options=options)
        return obs, {**infos, "action_mask": self.mask_function(obs, self.sizes)}

    def step(self, actions: Any, out: Mapping[str, Any] | None = None) -> Any:
        """Steps all environments and adds the mask of their observations."""
        others = None if out is None else {name: x for name, x in out.items() if name != "action_mask"}
        *results, infos = super().step(actions, others)
        mask = self.mask_function(results[0], self.sizes)
        if out is not None and "action_mask" in out:
            mask = out["action_mask"].copy_(mask)
        return *results, {**infos, "action_mask": mask}


def forbidden_actions(mask: Tensor, action: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Returns, (...) bool, whether a component of an action is forbidden.

    Args:
        mask: (..., N) bool.
        action: (...) or (..., K) int64, counted from 0.
        sizes: numbers of actions of the components.
    """
    components = action.unsqueeze(-1) if len(sizes) == 1 else action
    parts = zip(mask.split(sizes, -1), components.split(1, -1), strict=True)
    return ~torch.cat([part.gather(-1, component) for part, component in parts], -1).all(-1)
