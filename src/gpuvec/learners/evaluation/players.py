"""Who plays: a policy, chance, or one player for each role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Protocol

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.errors import NonFiniteError
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.seeds import ACTIONS, stream_seed


class PolicyNetwork(Protocol):
    """Networks that hold a policy."""

    def policy(self, obs: Tensor) -> Any:
        """The distribution of actions at `obs`, with `mode()` and `draw(sampler, iteration, step)`."""

    def control(self, action: Tensor) -> Tensor:
        """What the environment takes for an action of the policy."""


Player = Callable[[Any], Callable[[Tensor], Tensor]]
"""Given the vector environment that it is to play, a function of observations that gives actions."""


def policy(network: PolicyNetwork, *, greedy: bool = True, seed: int = 0) -> Player:
    """Who takes the network's likeliest action, or draws one if not `greedy`.

    Raises:
        NonFiniteError: a weight of the network, or a number by which it normalises, is not finite.
    """
    require_finite(network)

    def player(envs: Any) -> Callable[[Tensor], Tensor]:
        sampler, steps = Sampler(str(envs.device), seed), count()
        none = torch.zeros((), dtype=torch.int64, device=envs.device)

        def act(obs: Tensor) -> Tensor:
            found = network.policy(obs)
            return network.control(found.mode() if greedy else found.draw(sampler, none, next(steps)).action)

        return act

    return player


def require_finite(network: PolicyNetwork) -> None:
    """Raises NonFiniteError unless all numbers of a module are finite: one that is not would still choose actions."""
    if not isinstance(network, torch.nn.Module):
        return
    for name, value in network.state_dict().items():
        if not value.isfinite().all():
            raise NonFiniteError(
                f"{name} of the network is not finite, so what it plays means nothing: take a checkpoint from before."
            )


def policies_by_role(networks: Mapping[str, PolicyNetwork], *, greedy: bool = True, seed: int = 0) -> Player:
    """Each network for its role, or for all agents if it is that of "all"; those that draw do so apart from each other."""
    if ALL in networks:
        return policy(networks[ALL], greedy=greedy, seed=seed)
    seeds = {role: stream_seed(seed, ACTIONS, role) for role in networks}
    return by_role({role: policy(each, greedy=greedy, seed=seeds[role]) for role, each in networks.items()})


def at_random(seed: int = 0) -> Player:
    """Who draws actions uniformly from a Discrete or MultiDiscrete space."""

    def player(envs: Any) -> Callable[[Tensor], Tensor]:
        generator = torch.Generator(envs.device).manual_seed(seed)
        space = envs.single_action_space
        choices = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        size, start = (torch.as_tensor(x, device=envs.device) for x in (choices, space.start))

        def act(obs: Tensor) -> Tensor:
            draws = torch.rand((len(obs), *size.shape), generator=generator, device=obs.device)
            return (draws * size).long() + start

        return act

    return player


def by_role(players: Mapping[str, Player]) -> Player:
    """One player for each role of the environment, {name: player}; each sees all agents, and its own ones do as it says."""

    def player(envs: Any) -> Callable[[Tensor], Tensor]:
        roles = envs.roles
        if roles.keys() != players.keys():
            raise ValueError(
                f"there must be a player for each role, {', '.join(roles)}; there is one for {', '.join(players)}."
            )
        acts = [(roles[name], each(envs)) for name, each in players.items()]

        def act(obs: Tensor) -> Tensor:
            first, *others = acts
            actions = first[1](obs).clone()
            for where, of_role in others:
                actions[:, where] = of_role(obs)[:, where].to(actions.dtype)
            return actions

        return act

    return player
