"""A deterministic policy and its critics, for actions of a Box.

A body of one's own has two modules, for observations (..., D) and actions (..., K)::

    actor(obs)             (..., K): any numbers; a hyperbolic tangent bounds them to the space
    critic(obs, action)    (...,): what the policy will gain; actions are in half ranges around the centre, within -1 and 1

Each is trained by its own loss alone, so they must share no parameters. Where there are two critics, the second is that of
another body, made like the first.
"""

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
from gpuvec.learners.sampling.sampler import Drawn, Sampler


class Action(NamedTuple):
    """The one action of a deterministic policy."""

    action: Tensor  # (..., K)

    def mode(self) -> Tensor:
        """(..., K)."""
        return self.action

    def draw(self, sampler: Sampler, iteration: Tensor, step: int, out: Drawn | None = None) -> Drawn:
        """The same, which is certain."""
        return Drawn(self.action, *self.action.new_zeros(2, *self.action.shape[:-1]))


class Critic(nn.Module):
    """A perceptron that sees both side by side."""

    def __init__(self, features: int, components: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.layers = mlp((features + components, *hidden, 1), 1.0, nn.ReLU)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """(...,)."""
        value: Tensor = self.layers(torch.cat([obs, action], -1))
        return value.squeeze(-1)


def perceptrons(features: int, components: int, hidden: Sequence[int], critics: int) -> tuple[nn.Module, list[nn.Module]]:
    """(actor, critics) with the same hidden layers."""
    actor = mlp((features, *hidden, components), 0.01, nn.ReLU)
    return actor, [Critic(features, components, hidden) for _ in range(critics)]


def of_bodies(bodies: Sequence[Any]) -> tuple[nn.Module, list[nn.Module]]:
    """(actor, critics): the first one's actor, and the critic of each.

    Raises:
        TypeError: a body without them.
    """
    for body in bodies:
        for name in ("actor", "critic"):
            if not isinstance(getattr(body, name, None), nn.Module):
                raise TypeError(f"{type(body).__name__} has no module {name!r}: ddpg asks actor(obs) and critic(obs, action).")
    return bodies[0].actor, [body.critic for body in bodies]


def bounded(space: gym.Space[Any]) -> gym.spaces.Box:
    """An action space that a deterministic policy takes.

    Raises:
        ValueError: an action space of another kind, or without bounds.
    """
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        raise ValueError(
            f"the action space is {space}; a deterministic policy takes a bounded Box of shape (K,): use PPO or A2C."
        )
    return space


class DeterministicActorCritic(nn.Module):
    """A policy for Box((K,)) actions, which a hyperbolic tangent bounds, and critics of (observation, action).

    Args:
        observation_space, action_space: of one agent.
        actor, critics: modules as above.
        normalize: whether the networks see normalised observations; `normalizer` is updated by the learner.

    Raises:
        ValueError: an action space of another kind, or without bounds; modules whose outputs do not fit, or that share
            parameters.
    """

    centre: Tensor
    reach: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        actor: nn.Module,
        critics: Iterable[nn.Module],
        normalize: bool = False,
    ) -> None:
        super().__init__()
        space, features = bounded(action_space), features_of(observation_space)
        low, high = (torch.from_numpy(x.astype(np.float32)) for x in (space.low, space.high))
        self.register_buffer("centre", (low + high) / 2, persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)
        self.actor, self.critics = actor, nn.ModuleList(critics)
        _require_fit(self.actor, self.critics, features, space.shape[0])
        self.normalizer = Normalizer(features) if normalize else None

    def policy(self, obs: Tensor) -> Action:
        """What is done at `obs`, (..., D)."""
        return Action(self.outward(self.act(self.actor, self.seen(obs))))

    def act(self, actor: nn.Module, seen: Tensor) -> Tensor:
        """(..., K) within -1 and 1, of this actor or its target, for observations as networks see them."""
        action: Tensor = actor(seen).tanh()
        return action

    def values(self, critics: Iterable[nn.Module], seen: Tensor, within: Tensor) -> Tensor:
        """(C, ...) of these critics or their targets, for actions within -1 and 1."""
        return torch.stack([critic(seen, within) for critic in critics])

    def outward(self, within: Tensor, out: Tensor | None = None) -> Tensor:
        """The actions of the space that these are, in half ranges around its centre."""
        return torch.addcmul(self.centre, self.reach, within, out=out)

    def inward(self, action: Tensor) -> Tensor:
        """The other way about."""
        return (action - self.centre) / self.reach

    def seen(self, obs: Tensor) -> Tensor:
        """Observations as the networks see them."""
        return obs if self.normalizer is None else self.normalizer(obs)

    def control(self, action: Tensor) -> Tensor:
        """What the environment takes."""
        return action


@torch.no_grad()
def _require_fit(actor: nn.Module, critics: nn.ModuleList, features: int, components: int) -> None:
    where = next(actor.parameters(), torch.zeros(())).device
    obs, action = torch.zeros(2, features, device=where), torch.zeros(2, components, device=where)
    found = [("actor(obs)", actor(obs), (2, components))] + [("critic(obs, action)", c(obs, action), (2,)) for c in critics]
    for name, out, shape in found:
        if tuple(out.shape) != shape:
            raise ValueError(
                f"{name} gives shape {tuple(out.shape)} for observations of shape {tuple(obs.shape)} and actions of shape "
                f"{tuple(action.shape)}; it must give {shape}."
            )
    parts = [set(map(id, part.parameters())) for part in (actor, *critics)]
    if sum(map(len, parts)) != len(set().union(*parts)):
        raise ValueError("actor and critics share parameters; each is trained by its own loss, so give each its own.")
