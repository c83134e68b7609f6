"""Wrappers that add action masks, images or turns to the environments of a test, as learners need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpuvec.learners.networks.actor_critic import outputs_of
from gpuvec.vector.spaces import space_of_one_agent
from gpuvec.vector.wrappers.base import Wrapper

MaskFunction = Callable[[Tensor, tuple[int, ...]], Tensor]

SIDE = 7  # of the images
LIMITS = (2.4, 2.0, 0.2, 2.0)  # of the features of CartPole

WAITING_ACTION = 1


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


def cart_pole_images(obs: Tensor) -> Tensor:
    """Returns images of CartPole's features, (..., 2, SIDE, SIDE): position and velocity, angle and angular velocity.

    A channel has one pixel of value 1, whose row and column are those of two features.
    """
    # They are divided as columns, since a tensor of the limits would be copied from the host, which a CUDA graph cannot.
    scaled = torch.stack([obs[..., k] / limit for k, limit in enumerate(LIMITS)], dim=-1)
    place = (scaled.clamp(-1, 1) * (SIDE // 2)).round().long() + SIDE // 2  # (..., 4)
    pixels = place[..., ::2] * SIDE + place[..., 1::2]
    return functional.one_hot(pixels, SIDE * SIDE).view(*obs.shape[:-1], 2, SIDE, SIDE)


def feature_images(obs: Tensor) -> Tensor:
    """Returns images (..., 1, 3, SIDE), in which each row has the first SIDE features."""
    features = functional.pad(obs[..., :SIDE], (0, max(0, SIDE - obs.shape[-1])))
    return features.unsqueeze(-2).expand(*obs.shape[:-1], 3, SIDE).unsqueeze(-3)


class ImageEnv(Wrapper):
    """An environment whose observations are images, also in the arrays that a step writes to.

    Args:
        env: the environment, in SAME_STEP mode with torch output.
        make_images: returns the images of observations, (..., C, H, W).
        high: the largest value of a pixel; images are multiplied by it.
        dtype: of the images.
    """

    def __init__(self, env: Any, make_images: Any = cart_pole_images, high: float = 1.0, dtype: Any = np.uint8) -> None:
        super().__init__(env)
        self.make_images, self.high = make_images, high
        self.dtype = torch.uint8 if dtype == np.uint8 else torch.float32
        shape = tuple(make_images(torch.zeros(env.single_observation_space.shape)).shape)
        self.single_observation_space = gym.spaces.Box(0.0 if dtype == np.uint8 else -high, high, shape, dtype)

    def _images(self, obs: Tensor) -> Tensor:
        return (self.make_images(obs) * self.high).to(self.dtype)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments."""
        obs, infos = super().reset(seed=seed, options=options)
        return self._images(obs), infos

    def step(self, actions: Any, out: Mapping[str, Any] | None = None) -> Any:
        """Steps all environments."""
        others = None if out is None else {name: x for name, x in out.items() if name not in ("obs", "final_obs")}
        obs, *results, infos = super().step(actions, others)
        images = {"obs": self._images(obs)}
        if "final_obs" in infos:
            images["final_obs"] = self._images(infos["final_obs"])
        for name, x in images.items():
            if out is not None and name in out:
                images[name] = out[name].copy_(x)
                assert out[name].dtype == x.dtype
        infos |= {name: x for name, x in images.items() if name == "final_obs"}
        return images["obs"], *results, infos


class TurnsEnv(Wrapper):
    """An environment whose agents act in turn: agent k in the steps k, k + A, ... of an episode.

    `agent_mask` says which agents acted: the active one whose turn it was. The actions of the others are replaced.

    Args:
        env: an environment of many agents, in SAME_STEP mode with torch output.
    """

    has_turns = True

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments; the first agents move first."""
        obs, infos = super().reset(seed=seed, options=options)
        self.time = torch.zeros(len(obs), 1, dtype=torch.int64, device=obs.device)
        return obs, infos

    def step(self, actions: Any, out: Mapping[str, Any] | None = None) -> Any:
        """Steps all environments."""
        agents = torch.arange(actions.shape[1], device=actions.device)
        moves = agents == self.time % len(agents)
        is_moved = moves.view(*moves.shape, *[1] * (actions.dim() - 2))
        obs, reward, terminated, truncated, infos = super().step(actions.where(is_moved, WAITING_ACTION), out)
        self.time.add_(1).masked_fill_((terminated | truncated).unsqueeze(1), 0)
        infos["agent_mask"].logical_and_(moves)
        return obs, reward, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the environment and the times."""
        return {"env": self.env.state_dict(), "time": self.time.tolist()}  # type: ignore[attr-defined]  # of gpuvec's

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the result of `state_dict`."""
        self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]  # of gpuvec's
        self.time = torch.tensor(state["time"])
