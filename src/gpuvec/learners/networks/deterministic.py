"""A deterministic policy and its critics, for actions of a Box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from gpuvec.learners.networks.actor_critic import features_of
from gpuvec.learners.networks.mlp import mlp
from gpuvec.learners.networks.normalizer import Normalizer
from gpuvec.learners.sampling import Drawn, Sampler


class Action(NamedTuple):
    """The one action of a deterministic policy."""

    action: Tensor  # (..., K)

    def mode(self) -> Tensor:
        """(..., K)."""
        return self.action

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: Drawn | None = None) -> Drawn:
        """The same, which is certain."""
        return Drawn(self.action, *self.action.new_zeros(2, *self.action.shape[:-1]))


class DeterministicActorCritic(nn.Module):
    """A policy for Box((K,)) actions, which a hyperbolic tangent bounds, and critics of (observation, action).

    Args:
        observation_space, action_space: of one agent.
        hidden: sizes of the hidden layers, the same in all networks.
        critics: how many.
        normalize: whether the networks see normalised observations; `normalizer` is updated by the learner.

    Raises:
        ValueError: an action space of another kind, or without bounds.
    """

    centre: Tensor
    reach: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        hidden: Sequence[int],
        critics: int = 1,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(action_space, gym.spaces.Box) or len(action_space.shape) != 1 or not action_space.is_bounded():
            raise ValueError(
                f"the action space is {action_space}; a deterministic policy takes a bounded Box of shape (K,): use PPO or A2C."
            )
        features, components = features_of(observation_space), action_space.shape[0]
        low, high = (torch.from_numpy(x.astype(np.float32)) for x in (action_space.low, action_space.high))
        self.register_buffer("centre", (low + high) / 2, persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)
        self.actor = mlp((features, *hidden, components), 0.01, nn.ReLU)
        self.critics = nn.ModuleList(mlp((features + components, *hidden, 1), 1.0, nn.ReLU) for _ in range(critics))
        self.normalizer = Normalizer(features) if normalize else None

    def policy(self, obs: Tensor) -> Action:
        """What is done at `obs`, (..., D)."""
        return Action(self.act(self.actor, self.seen(obs)))

    def act(self, actor: nn.Module, seen: Tensor) -> Tensor:
        """(..., K) of this actor or its target, for observations as networks see them."""
        action: Tensor = self.centre + self.reach * actor(seen).tanh()
        return action

    def values(self, critics: Iterable[nn.Module], seen: Tensor, action: Tensor) -> Tensor:
        """(C, ...) of these critics or their targets; they see actions in half ranges around the centre."""
        inputs = torch.cat([seen, (action - self.centre) / self.reach], -1)
        return torch.stack([critic(inputs).squeeze(-1) for critic in critics])

    def seen(self, obs: Tensor) -> Tensor:
        """Observations as the networks see them."""
        return obs if self.normalizer is None else self.normalizer(obs)

    def control(self, action: Tensor) -> Tensor:
        """What the environment takes."""
        return action
