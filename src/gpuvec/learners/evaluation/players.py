"""Players, which act in an evaluation: a policy, random actions, or one player for each role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Protocol

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.errors import NonFiniteError
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.environments import TrainingEnv
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.seeds import ACTIONS, stream_seed


class PolicyNetwork(Protocol):
    """A network that has a policy."""

    def policy(self, obs: Tensor) -> Any:
        """Returns the distribution of actions at `obs`, (E, D), with `mode()` and `draw(sampler, iteration, step)`.

        Other leading dimensions are kept.
        """

    def control(self, action: Tensor) -> Tensor:
        """Returns the environment's action for an `action` of the policy, both (E,) or (E, K).

        Other leading dimensions are kept.
        """


Act = Callable[[Tensor], Tensor]
"""Returns actions (E, ...) for observations (E, ...)."""
Player = Callable[[TrainingEnv], Act]
"""Returns, for the environment in which it acts, a function of observations."""


def policy(network: PolicyNetwork, *, greedy: bool = True, seed: int = 0) -> Player:
    """Returns a player that acts by a network.

    Args:
        network: the policy.
        greedy: take the likeliest action instead of drawing one.
        seed: of the actions that are drawn.

    Raises:
        NonFiniteError: a weight of the network, or a moment of its normaliser, is not finite.
    """
    require_finite(network)

    def player(envs: TrainingEnv) -> Act:
        sampler, steps = Sampler(str(envs.device), seed), count()
        iteration = torch.zeros((), dtype=torch.int64, device=envs.device)

        def act(obs: Tensor) -> Tensor:
            actions = network.policy(obs)
            return network.control(actions.mode() if greedy else actions.draw(sampler, iteration, next(steps)).action)

        return act

    return player


def require_finite(network: PolicyNetwork) -> None:
    """Raises NonFiniteError unless all numbers of `network` are finite; a network with others would still return actions."""
    if not isinstance(network, torch.nn.Module):
        return
    for name, value in network.state_dict().items():
        if not value.isfinite().all():
            raise NonFiniteError(
                f"{name} of the network is not finite, so its actions have no meaning: take an earlier checkpoint."
            )


def policies_by_role(networks: Mapping[str, PolicyNetwork], *, greedy: bool = True, seed: int = 0) -> Player:
    """Returns a player that acts for each role by its network.

    Args:
        networks: {role: network}, or {"all": network} for all agents.
        greedy: take the likeliest actions instead of drawing them.
        seed: of the actions that are drawn; each role has its own random numbers.

    Raises:
        NonFiniteError: a weight of a network, or a moment of its normaliser, is not finite.
    """
    if ALL in networks:
        return policy(networks[ALL], greedy=greedy, seed=seed)
    seeds = {role: stream_seed(seed, ACTIONS, role) for role in networks}
    return by_role({role: policy(network, greedy=greedy, seed=seeds[role]) for role, network in networks.items()})


def at_random(seed: int = 0) -> Player:
    """Returns a player that draws actions uniformly from a Discrete or MultiDiscrete space, by random numbers of `seed`."""

    def player(envs: TrainingEnv) -> Act:
        generator = torch.Generator(envs.device).manual_seed(seed)
        space = envs.single_action_space
        assert isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
        choices = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        size, start = (torch.as_tensor(x, device=envs.device) for x in (choices, space.start))

        def act(obs: Tensor) -> Tensor:
            uniform = torch.rand((len(obs), *size.shape), generator=generator, device=obs.device)
            return (uniform * size).long() + start

        return act

    return player


def by_role(players: Mapping[str, Player]) -> Player:
    """Returns a player that acts for each role by another one.

    Args:
        players: {role: player}; each gets the observations of all agents, and its actions are used for its own role.

    Raises:
        ValueError: the environment has other roles; raised by the player.
    """

    def player(envs: TrainingEnv) -> Act:
        roles = envs.roles
        if roles.keys() != players.keys():
            raise ValueError(
                f"there must be a player for each role, {', '.join(roles)}; there is one for {', '.join(players)}."
            )
        acts = [(roles[role], role_player(envs)) for role, role_player in players.items()]

        def act(obs: Tensor) -> Tensor:
            (_, first_act), *rest = acts
            actions = first_act(obs).clone()
            for agents, role_act in rest:
                actions[:, agents] = role_act(obs)[:, agents].to(actions.dtype)
            return actions

        return act

    return player
