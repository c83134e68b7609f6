"""Policy and value function: any module with two methods, and what lies between it and an action space.

The two methods of such a body, for observations (..., D)::

    policy(obs)    (..., N): logits of a Discrete(N) action; of a MultiDiscrete one those of all components, side by side;
                   for a Box of shape (N,) the means
    value(obs)     (...,): what the policy will gain

It may have two more. With `both(obs)` a body that computes something for the two gives them at once. With `allowed(obs)`,
(..., N) bool for observations as the environment gives them, it says which actions are allowed where, at least one of each
component: no others are drawn, and as the update asks it about the same observations, none of them enters a probability there.
`mlp` has the bodies that learners take if they are given none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from gpuvec.learners.networks.distributions import Categorical, Gaussian, MultiCategorical
from gpuvec.learners.networks.normalizer import Normalizer

FORBIDDEN = -1e8  # a logit: its exponential is 0, and 0 times it is 0, which infinity would spoil
Body = Callable[[gym.Space[Any], gym.Space[Any]], nn.Module]
"""Makes a body for the observation and action space of one agent."""
Policy = Categorical | MultiCategorical | Gaussian


def features_of(space: gym.Space[Any]) -> int:
    """D of an observation space."""
    return int(np.prod(space.shape or (1,)))


def outputs_of(space: gym.Space[Any]) -> int:
    """N of an action space: how many numbers a body's `policy` gives.

    Raises:
        ValueError: an action space of another kind.
    """
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete) and len(space.shape) == 1:
        return int(space.nvec.sum())
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return int(space.shape[0])
    raise ValueError(f"the action space is {space}; this policy takes Discrete(N), MultiDiscrete or Box of shape (K,).")


class ActorCritic(nn.Module):
    """A policy and a value function for Box((D,)) observations, and Discrete, MultiDiscrete or Box((K,)) actions.

    For Discrete(N) the policy is Categorical over N actions, for MultiDiscrete over those of each component. For Box((K,)) it
    is Gaussian with a standard deviation that does not depend on the observation; its samples are clipped to the space only
    on their way to the environment.

    Args:
        observation_space, action_space: of one agent.
        body: a module with the methods above.
        normalize: whether it sees normalised observations; `normalizer` is updated by the learner.

    Raises:
        TypeError, ValueError: a body without those methods, or whose outputs do not fit; an action space of another kind.
    """

    low: Tensor
    high: Tensor
    starts: Tensor

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], body: Any, normalize: bool = False
    ) -> None:
        super().__init__()
        features, outputs = features_of(observation_space), outputs_of(action_space)
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        self.sizes: tuple[int, ...] = ()  # of the components of a MultiDiscrete action
        if isinstance(action_space, gym.spaces.Discrete):
            self.start = int(action_space.start)
        elif isinstance(action_space, gym.spaces.MultiDiscrete):
            self.sizes = tuple(map(int, action_space.nvec))
            self.register_buffer("starts", torch.from_numpy(action_space.start.astype(np.int64)), persistent=False)
        elif isinstance(action_space, gym.spaces.Box):
            self.log_std = nn.Parameter(torch.zeros(outputs))
            self.register_buffer("low", torch.from_numpy(action_space.low.astype(np.float32)), persistent=False)
            self.register_buffer("high", torch.from_numpy(action_space.high.astype(np.float32)), persistent=False)
        self.body = body
        self.normalizer = Normalizer(features) if normalize else None
        _require_fit(body, features, outputs, action_space)

    def policy(self, obs: Tensor) -> Policy:
        """The distribution of actions at `obs`, (..., D)."""
        return self._distribution(self.body.policy(self._seen(obs)), obs)

    def value(self, obs: Tensor) -> Tensor:
        """V(obs): (...,) for `obs`, (..., D)."""
        value: Tensor = self.body.value(self._seen(obs))
        return value

    def both(self, obs: Tensor) -> tuple[Policy, Tensor]:
        """The two at once."""
        seen = self._seen(obs)
        if hasattr(self.body, "both"):
            out, value = self.body.both(seen)
        else:
            out, value = self.body.policy(seen), self.body.value(seen)
        return self._distribution(out, obs), value

    def _distribution(self, out: Tensor, obs: Tensor) -> Policy:
        if hasattr(self.body, "allowed"):
            out = out.masked_fill(~self.body.allowed(obs), FORBIDDEN)
        if self.sizes:
            return MultiCategorical(out, self.sizes)
        return Categorical(out) if self.discrete else Gaussian(out, self.log_std)

    def some_allowed(self, obs: Tensor) -> Tensor:
        """(...,) bool: whether the body's mask allows an action of each component at `obs`, (..., D)."""
        allowed: Tensor = self.body.allowed(obs)
        parts = allowed.split(self.sizes, -1) if self.sizes else (allowed,)
        return torch.stack([part.any(-1) for part in parts]).all(0)

    def _seen(self, obs: Tensor) -> Tensor:
        return obs if self.normalizer is None else self.normalizer(obs)

    def control(self, action: Tensor) -> Tensor:
        """What the environment takes for an action of the policy: discrete ones count from their start, Box clips to bounds."""
        if self.sizes:
            return action + self.starts
        if self.discrete:
            return action + self.start if self.start else action
        return action.clamp(self.low, self.high)


@torch.no_grad()
def _require_fit(body: Any, features: int, outputs: int, action_space: gym.Space[Any]) -> None:
    where = next(iter(body.parameters()), torch.zeros(())).device
    for name, shape in (("policy", (2, outputs)), ("value", (2,)), ("allowed", (2, outputs))):
        method = getattr(body, name, None)
        if method is None and name == "allowed":
            continue
        if not callable(method):
            raise TypeError(f"{type(body).__name__} has no method {name!r}: a network has policy(obs) and value(obs).")
        found = method(torch.zeros(2, features, device=where))
        if tuple(found.shape) != shape:
            raise ValueError(
                f"{type(body).__name__}.{name} gives shape {tuple(found.shape)} for observations of shape {(2, features)}; "
                f"for {action_space} it must give {shape}."
            )
        if name == "allowed" and (found.dtype != torch.bool or isinstance(action_space, gym.spaces.Box)):
            raise TypeError(
                f"{type(body).__name__}.allowed must give bool for Discrete or MultiDiscrete actions, got {found.dtype} for "
                f"{action_space}."
            )
