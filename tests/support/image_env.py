"""Wrappers whose observations are images, with which learners of images are tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpuvec.vector.wrappers.base import Wrapper

SIDE = 7  # of the images
LIMITS = (2.4, 2.0, 0.2, 2.0)  # of the features of CartPole


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
