"""Policy and value function: a module with two methods, and its connection to the spaces of an environment.

The two methods of such a body, for observations (..., D), or images (..., C, H, W) as the environment returns them::

    policy(obs)    (..., N): logits of a Discrete(N) action; for MultiDiscrete the concatenated logits of all components;
                   for a Box of shape (N,) the means
    value(obs)     (...,): the expected return

If the environment has observations of a critic, `infos["critic_obs"]`, `value` takes them, (..., Dc).

Two more are optional. `both(obs)` returns (policy(obs), value(obs)) of a body that shares computation between them.
`allowed(obs)`, (..., N) bool, is the action mask at observations that are not normalised; it allows at least one action of each
component. Forbidden actions are not drawn, and have probability 0 in the update too. An environment may have an action mask of
its own; then both must allow an action. `mlp` has the default bodies.
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

# The logit of a forbidden action. It is finite, because 0 times minus infinity is nan.
FORBIDDEN = -1e8
Body = Callable[..., nn.Module]
"""Creates a body from the observation space and the action space of one agent, and the space of the critic's observation if the
environment has one.
"""
Policy = Categorical | MultiCategorical | Gaussian


def features_of(space: gym.Space[Any]) -> int:
    """Returns D, the number of features of an observation `space`."""
    return int(np.prod(space.shape or (1,)))


def obs_dtype(space: gym.Space[Any]) -> torch.dtype:
    """Returns the dtype of the observations of `space`: images may be uint8, and all others are float32."""
    return torch.uint8 if space.dtype == np.uint8 else torch.float32


def outputs_of(space: gym.Space[Any]) -> int:
    """Returns N, the number of outputs of a body's `policy` for an action `space`.

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
    """A policy and a value function for Box observations, and Discrete, MultiDiscrete or Box((K,)) actions.

    For Discrete(N) the policy is Categorical over N actions, for MultiDiscrete it is one Categorical per component. For
    Box((K,)) it is Gaussian, and its standard deviation does not depend on the observation; samples are clipped to the space
    only when they are passed to the environment.

    Args:
        observation_space: of one agent.
        action_space: of one agent.
        body: a module with the methods that this module's docstring lists.
        normalize: whether the body receives normalised observations; the learner updates `normalizer`.
        critic_space: the space of the critic's observation, which `value` takes then; None if it takes that of an agent.

    Raises:
        TypeError, ValueError: a body without those methods, or whose outputs do not fit; an action space of another kind;
            `normalize` for observations that are not float32.
    """

    low: Tensor
    high: Tensor
    starts: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        body: nn.Module,
        normalize: bool = False,
        critic_space: gym.Space[Any] | None = None,
    ) -> None:
        super().__init__()
        outputs = self.num_outputs = outputs_of(action_space)
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
        # torch types the attributes of a module as tensors or modules, not as methods.
        self.body: Any = body
        if normalize and obs_dtype(observation_space) != torch.float32:
            raise ValueError(
                f"normalize=True is for float32 observations, and the observation space is {observation_space}: set "
                "normalize=False for images of uint8."
            )
        obs_shape = observation_space.shape or (1,)
        self.normalizer = Normalizer(*obs_shape) if normalize else None
        self.has_critic_obs = critic_space is not None
        critic_shape = obs_shape if critic_space is None else critic_space.shape or (1,)
        self.critic_normalizer = Normalizer(*critic_shape) if normalize and self.has_critic_obs else None
        obs = torch.zeros(2, *obs_shape, dtype=obs_dtype(observation_space))
        _require_fit(body, obs, torch.zeros(2, *critic_shape) if self.has_critic_obs else obs, outputs, action_space)

    def policy(self, obs: Tensor, action_mask: Tensor | None = None) -> Policy:
        """Returns the distribution of actions.

        Args:
            obs: (E, D) or with other leading dimensions.
            action_mask: (E, N) bool: the environment's action mask at `obs`; None without one.
        """
        return self._distribution(self.body.policy(self._normalized(obs)), obs, action_mask)

    def value(self, obs: Tensor) -> Tensor:
        """Returns V(obs), (E,), for `obs`, (E, D), or for the critic's observations, (E, Dc), if the environment has them.

        Other leading dimensions are kept.
        """
        normalizer = self.critic_normalizer if self.has_critic_obs else self.normalizer
        value: Tensor = self.body.value(obs if normalizer is None else normalizer(obs))
        return value

    def both(self, obs: Tensor, action_mask: Tensor | None = None, critic_obs: Tensor | None = None) -> tuple[Policy, Tensor]:
        """Returns the distribution of actions and V(obs), (E,).

        Args:
            obs: (E, D) or with other leading dimensions.
            action_mask: (E, N) bool: the environment's action mask at `obs`; None without one.
            critic_obs: (E, Dc): the critic's observations; None in environments without them.
        """
        if critic_obs is not None:
            return self.policy(obs, action_mask), self.value(critic_obs)
        features = self._normalized(obs)
        if hasattr(self.body, "both"):
            outputs, value = self.body.both(features)
        else:
            outputs, value = self.body.policy(features), self.body.value(features)
        return self._distribution(outputs, obs, action_mask), value

    def _distribution(self, outputs: Tensor, obs: Tensor, action_mask: Tensor | None) -> Policy:
        allowed = self._allowed(obs, action_mask)
        if allowed is not None:
            outputs = outputs.masked_fill(~allowed, FORBIDDEN)
        if self.sizes:
            return MultiCategorical(outputs, self.sizes)
        return Categorical(outputs) if self.discrete else Gaussian(outputs, self.log_std)

    def _allowed(self, obs: Tensor, action_mask: Tensor | None) -> Tensor | None:
        """Returns the actions, (E, N) bool, that body and environment allow; None if neither has a mask."""
        if not hasattr(self.body, "allowed"):
            return action_mask
        allowed: Tensor = self.body.allowed(obs)
        return allowed if action_mask is None else allowed & action_mask

    def any_allowed(self, obs: Tensor, action_mask: Tensor | None = None) -> Tensor:
        """Returns, (E,) bool, whether an action of each component is allowed; body or environment must have a mask.

        Args:
            obs: (E, D) or with other leading dimensions.
            action_mask: (E, N) bool: the environment's action mask at `obs`; None without one.
        """
        allowed = self._allowed(obs, action_mask)
        assert allowed is not None, "neither the body nor the environment has an action mask"
        parts = allowed.split(self.sizes, -1) if self.sizes else (allowed,)
        return torch.stack([part.any(-1) for part in parts]).all(0)

    def _normalized(self, obs: Tensor) -> Tensor:
        return obs if self.normalizer is None else self.normalizer(obs)

    def control(self, action: Tensor) -> Tensor:
        """Converts an action of the policy to the environment's: adds the start of discrete ones, clips those of a Box.

        Args:
            action: (E,) or (E, K) int64, or (E, K) float32; other leading dimensions are kept.
        """
        if self.sizes:
            return action + self.starts
        if self.discrete:
            return action + self.start if self.start else action
        return action.clamp(self.low, self.high)


@torch.no_grad()
def _require_fit(body: nn.Module, policy_obs: Tensor, value_obs: Tensor, outputs: int, action_space: gym.Space[Any]) -> None:
    device = next(iter(body.parameters()), torch.zeros(())).device
    for name, shape in (("policy", (2, outputs)), ("value", (2,)), ("allowed", (2, outputs))):
        method = getattr(body, name, None)
        if method is None and name == "allowed":
            continue
        if not callable(method):
            raise TypeError(f"{type(body).__name__} has no method {name!r}: a network has policy(obs) and value(obs).")
        obs = value_obs if name == "value" else policy_obs
        result = method(obs.to(device))
        if tuple(result.shape) != shape:
            raise ValueError(
                f"{type(body).__name__}.{name} gives shape {tuple(result.shape)} for observations of shape {tuple(obs.shape)}; "
                f"for {action_space} it must give {shape}."
            )
        if name == "allowed" and (result.dtype != torch.bool or isinstance(action_space, gym.spaces.Box)):
            raise TypeError(
                f"{type(body).__name__}.allowed must give bool for Discrete or MultiDiscrete actions, got {result.dtype} for "
                f"{action_space}."
            )
