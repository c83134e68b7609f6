"""Policy and value networks: separate multilayer perceptrons with tanh units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from gpuvec.learners.distributions import Categorical, Gaussian, MultiCategorical
from gpuvec.learners.normalizer import Normalizer


def mlp(
    sizes: Sequence[int], gain: float, generator: torch.Generator, unit: Callable[[], nn.Module] = nn.Tanh
) -> nn.Sequential:
    """Linear layers of these sizes with units between them.

    Weights are orthogonal (Saxe, McClelland and Ganguli, 2014), scaled by sqrt(2), those of the last layer by `gain`.
    """
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
        last = k == len(sizes) - 2
        nn.init.orthogonal_(linear.weight, gain if last else math.sqrt(2.0), generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, unit()]
    return nn.Sequential(*layers)


class ActorCritic(nn.Module):
    """A policy and a value function for Box((D,)) observations, and Discrete, MultiDiscrete or Box((K,)) actions.

    For Discrete(N) the policy is Categorical over N actions, for MultiDiscrete over those of each component. For Box((K,)) it
    is Gaussian with a standard deviation that does not depend on the observation; its samples are clipped to the space only
    on their way to the environment.

    Args:
        observation_space, action_space: of one agent.
        hidden: sizes of the hidden layers, the same in both networks.
        generator: on the CPU; draws the first weights.
        normalize: whether both networks see normalised observations; `normalizer` is updated by the learner.

    Raises:
        ValueError: an action space of another kind.
    """

    low: Tensor
    high: Tensor
    starts: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        hidden: Sequence[int],
        generator: torch.Generator,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        features = int(np.prod(observation_space.shape or (1,)))
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        self.sizes: tuple[int, ...] = ()  # of the components of a MultiDiscrete action
        if isinstance(action_space, gym.spaces.Discrete):
            outputs, self.start = int(action_space.n), int(action_space.start)
        elif isinstance(action_space, gym.spaces.MultiDiscrete) and len(action_space.shape) == 1:
            self.sizes = tuple(map(int, action_space.nvec))
            outputs = sum(self.sizes)
            self.register_buffer("starts", torch.from_numpy(action_space.start.astype(np.int64)), persistent=False)
        elif isinstance(action_space, gym.spaces.Box) and len(action_space.shape) == 1:
            outputs = action_space.shape[0]
            self.log_std = nn.Parameter(torch.zeros(outputs))
            self.register_buffer("low", torch.from_numpy(action_space.low.astype(np.float32)), persistent=False)
            self.register_buffer("high", torch.from_numpy(action_space.high.astype(np.float32)), persistent=False)
        else:
            raise ValueError(
                f"the action space is {action_space}; this policy takes Discrete(N), MultiDiscrete or Box of shape (K,)."
            )
        # A small last layer: the first policy prefers no action.
        self.actor = mlp((features, *hidden, outputs), 0.01, generator)
        self.critic = mlp((features, *hidden, 1), 1.0, generator)
        self.normalizer = Normalizer(features) if normalize else None

    def policy(self, obs: Tensor) -> Categorical | MultiCategorical | Gaussian:
        """The distribution of actions at `obs`, (..., D)."""
        out = self.actor(self._seen(obs))
        if self.sizes:
            return MultiCategorical.of(out, self.sizes)
        return Categorical.of(out) if self.discrete else Gaussian(out, self.log_std)

    def value(self, obs: Tensor) -> Tensor:
        """V(obs): (...,) for `obs`, (..., D)."""
        value: Tensor = self.critic(self._seen(obs))
        return value.squeeze(-1)

    def _seen(self, obs: Tensor) -> Tensor:
        return obs if self.normalizer is None else self.normalizer(obs)

    def control(self, action: Tensor) -> Tensor:
        """What the environment takes for an action of the policy: discrete ones count from their start, Box clips to bounds."""
        if self.sizes:
            return action + self.starts
        if self.discrete:
            return action + self.start if self.start else action
        return action.clamp(self.low, self.high)
