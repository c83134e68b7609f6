"""A deterministic policy and its critics, for actions of a Box.

A custom body has two modules, for observations (..., D) and actions (..., K)::

    actor(obs)             (..., K): unbounded numbers, which tanh maps to the action space
    critic(obs, action)    (...,): the expected return; actions are scaled to the range from -1 to 1

Each has its own loss, so they must not share parameters. A second critic is the critic of a second body.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from gpuvec.learners.networks.actor_critic import features_of
from gpuvec.learners.networks.mlp import make_mlp
from gpuvec.learners.networks.normalizer import Normalizer
from gpuvec.learners.sampling.sampler import ActionSample, Sampler


class Deterministic(NamedTuple):
    """The distribution of a deterministic policy: a single action."""

    action: Tensor  # (..., K)

    def mode(self) -> Tensor:
        """Returns the action, (..., K)."""
        return self.action

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: ActionSample | None = None) -> ActionSample:
        """Returns the action, (E, K), with log-probabilities and entropies of 0, (E,); other leading dimensions are kept.

        The arguments `sampler`, `iteration`, `step` and `out` are those of other distributions, and are not used.
        """
        return ActionSample(self.action, *self.action.new_zeros(2, *self.action.shape[:-1]))


class Critic(nn.Module):
    """A multilayer perceptron of the concatenated observation and action.

    Args:
        features: D.
        components: K.
        hidden: sizes of the hidden layers.
    """

    def __init__(self, features: int, components: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.layers = make_mlp((features + components, *hidden, 1), 1.0, nn.ReLU)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the expected return, (E,), for `obs`, (E, D), and `action`, (E, K); other leading dimensions are kept."""
        value: Tensor = self.layers(torch.cat([obs, action], -1))
        return value.squeeze(-1)


def require_bounded_box(space: gym.Space[Any]) -> gym.spaces.Box:
    """Returns an action `space` if a deterministic policy supports it.

    Raises:
        ValueError: an action space of another kind, or without bounds.
    """
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        raise ValueError(
            f"the action space is {space}; a deterministic policy takes a bounded Box of shape (K,): use PPO or A2C."
        )
    return space


class DeterministicActorCritic(nn.Module):
    """A policy for Box((K,)) actions, bounded by tanh, and critics of (observation, action).

    Args:
        observation_space: of one agent.
        action_space: of one agent.
        actor: maps observations to unbounded numbers.
        critics: each maps (observation, scaled action) to the expected return.
        normalize: whether the networks receive normalised observations; the learner updates `normalizer`.

    Raises:
        ValueError: an action space of another kind, or without bounds; modules whose outputs do not fit, or that share
            parameters.
    """

    centre: Tensor
    half_range: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        actor: nn.Module,
        critics: Iterable[nn.Module],
        normalize: bool = False,
    ) -> None:
        super().__init__()
        space, features = require_bounded_box(action_space), features_of(observation_space)
        low, high = (torch.from_numpy(x.astype(np.float32)) for x in (space.low, space.high))
        self.register_buffer("centre", (low + high) / 2, persistent=False)
        self.register_buffer("half_range", (high - low) / 2, persistent=False)
        self.actor, self.critics = actor, nn.ModuleList(critics)
        _require_fit(self.actor, self.critics, features, space.shape[0])
        self.normalizer = Normalizer(features) if normalize else None

    def policy(self, obs: Tensor) -> Deterministic:
        """Returns the action at `obs`, (E, D); other leading dimensions are kept."""
        return Deterministic(self.unscale(self.act(self.actor, self.normalize_obs(obs))))

    def act(self, actor: nn.Module, features: Tensor) -> Tensor:
        """Returns scaled actions, (E, K) from -1 to 1, of an `actor` for `features`, (E, D) normalised observations."""
        action: Tensor = actor(features).tanh()
        return action

    def values(self, critics: Iterable[nn.Module], features: Tensor, scaled_action: Tensor) -> Tensor:
        """Returns the expected returns, (C, E), of C critics.

        Args:
            critics: C modules.
            features: (E, D): observations, normalised if there is a normaliser.
            scaled_action: (E, K) from -1 to 1.
        """
        return torch.stack([critic(features, scaled_action) for critic in critics])

    def unscale(self, scaled_action: Tensor, out: Tensor | None = None) -> Tensor:
        """Maps `scaled_action`, (E, K) from -1 to 1, to the action space; the result is written to `out`, (E, K), if given."""
        return torch.addcmul(self.centre, self.half_range, scaled_action, out=out)

    def scale(self, action: Tensor) -> Tensor:
        """Maps `action`, (E, K) in the action space, to the range from -1 to 1."""
        return (action - self.centre) / self.half_range

    def normalize_obs(self, obs: Tensor) -> Tensor:
        """Returns `obs`, (E, D), normalised if there is a normaliser."""
        return obs if self.normalizer is None else self.normalizer(obs)

    def control(self, action: Tensor) -> Tensor:
        """Returns `action`, (E, K), unchanged: the environment takes it as it is."""
        return action


@torch.no_grad()
def _require_fit(actor: nn.Module, critics: nn.ModuleList, features: int, components: int) -> None:
    device = next(actor.parameters(), torch.zeros(())).device
    obs, action = torch.zeros(2, features, device=device), torch.zeros(2, components, device=device)
    outputs = [("actor(obs)", actor(obs), (2, components))] + [("critic(obs, action)", c(obs, action), (2,)) for c in critics]
    for name, out, shape in outputs:
        if tuple(out.shape) != shape:
            raise ValueError(
                f"{name} gives shape {tuple(out.shape)} for observations of shape {tuple(obs.shape)} and actions of shape "
                f"{tuple(action.shape)}; it must give {shape}."
            )
    parts = [set(map(id, part.parameters())) for part in (actor, *critics)]
    if sum(map(len, parts)) != len(set().union(*parts)):
        raise ValueError("actor and critics share parameters; each is trained by its own loss, so give each its own.")
