"""Players, which act in an evaluation: a policy, random actions, a simple opponent, or one player for each role or agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, cast

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.errors import NonFiniteError
from gpuvec.learners.algorithms import ALL
from gpuvec.learners.environments import TrainingEnv, has_role_spaces, is_multi_agent
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.seeds import ACTIONS, INTERMEDIATE_EVALUATION, stream_seed
from gpuvec.vector.spaces import space_of_one_agent


class PolicyNetwork(Protocol):
    """A network that has a policy."""

    def policy(self, obs: Tensor) -> Any:
        """Returns the distribution of actions at `obs`, (E, D), with `mode()` and `draw(sampler, iteration, step)`.

        Other leading dimensions are kept. In environments with action masks the mask, (E, N) bool, is the second argument.
        """

    def control(self, action: Tensor) -> Tensor:
        """Returns the environment's action for an `action` of the policy, both (E,) or (E, K).

        Other leading dimensions are kept.
        """


Act = Callable[..., Tensor]
"""Returns actions (E, ...) for observations (E, ...); in environments with action masks the mask is the second argument."""
Player = Callable[[TrainingEnv], Act]
"""Returns, for the environment in which it acts, a function of observations."""


def action_distribution(network: Any, obs: Tensor, action_mask: Tensor | None) -> Any:
    """Returns the distribution of actions of a network.

    Args:
        network: a `PolicyNetwork`.
        obs: (E, D) or with other leading dimensions.
        action_mask: (E, N) bool; None in environments without action masks, for which a network needs no second argument.
    """
    return network.policy(obs) if action_mask is None else network.policy(obs, action_mask)


class Draws:
    """Numbers the draws of players that act in several evaluations, so that each evaluation draws numbers of its own.

    Args:
        device: of the players, "cpu" or "cuda:<index>".
    """

    def __init__(self, device: str) -> None:
        self.evaluation = torch.zeros((), dtype=torch.int64, device=device)
        self.steps = count()
        self._generators = list[tuple[int, torch.Generator]]()

    def generator(self, seed: int) -> torch.Generator:
        """Returns a generator for a function that draws numbers itself; `begin` seeds it again.

        Args:
            seed: of all evaluations, from which those of its numbers follow.
        """
        generator = torch.Generator(self.evaluation.device).manual_seed(seed)
        self._generators.append((seed, generator))
        return generator

    def begin(self, evaluation: int) -> None:
        """Makes the next draws those of an evaluation, by its number, whatever was drawn before."""
        self.evaluation.fill_(evaluation)
        self.steps = count()
        for seed, generator in self._generators:
            generator.manual_seed(stream_seed(seed, INTERMEDIATE_EVALUATION, index=evaluation))


def policy(network: PolicyNetwork, *, greedy: bool = True, seed: int = 0, draws: Draws | None = None) -> Player:
    """Returns a player that acts by a network.

    Args:
        network: the policy.
        greedy: take the likeliest action instead of drawing one.
        seed: of the actions that are drawn.
        draws: numbers them; None to number them from 0 on.

    Raises:
        NonFiniteError: a weight of the network, or a moment of its normaliser, is not finite.
    """
    require_finite(network)

    def player(envs: TrainingEnv) -> Act:
        sampler, numbers = Sampler(str(envs.device), seed), draws or Draws(str(envs.device))

        @torch.no_grad()
        def act(obs: Tensor, action_mask: Tensor | None = None) -> Tensor:
            actions = action_distribution(network, obs, action_mask)
            if greedy:
                return network.control(actions.mode())
            return network.control(actions.draw(sampler, numbers.evaluation, next(numbers.steps)).action)

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
    players = {role: policy(network, greedy=greedy, seed=role_seed(seed, role)) for role, network in networks.items()}
    return players[ALL] if ALL in players else by_role(players)


def role_seed(seed: int, role: str) -> int:
    """Returns the seed of the actions that the policy of a role draws.

    Args:
        seed: of all actions.
        role: the role, or "all".
    """
    return seed if role == ALL else stream_seed(seed, ACTIONS, role)


def at_random(seed: int = 0) -> Player:
    """Returns a player that draws actions of a Discrete, MultiDiscrete or bounded Box space, by random numbers of `seed`.

    All actions have the same probability; in environments with action masks all allowed actions. If roles have spaces of their
    own, it acts for all of them.
    """

    def player(envs: TrainingEnv) -> Act:
        if has_role_spaces(envs):
            return by_role({role: at_random(stream_seed(seed, ACTIONS, role)) for role in envs.roles})(envs)
        generator = torch.Generator(envs.device).manual_seed(seed)
        space = envs.single_action_space
        if isinstance(space, gym.spaces.Box):
            low, high = (torch.tensor(x, device=envs.device) for x in (space.low, space.high))
            return lambda obs: low + (high - low) * torch.rand((len(obs), *low.shape), generator=generator, device=obs.device)
        assert isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
        choices = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        size, start = (torch.tensor(x, device=envs.device) for x in (choices, space.start))
        one_agent = space_of_one_agent(space) if is_multi_agent(envs) else space

        def act(obs: Tensor, action_mask: Tensor | None = None) -> Tensor:
            if action_mask is None:
                uniform = torch.rand((len(obs), *size.shape), generator=generator, device=obs.device)
                return (uniform * size).long() + start
            # The largest of equally distributed numbers is that of each allowed action with the same probability.
            uniform = torch.rand(action_mask.shape, generator=generator, device=action_mask.device)
            uniform.masked_fill_(~action_mask, -1.0)
            if isinstance(one_agent, gym.spaces.MultiDiscrete):
                parts = uniform.split(one_agent.nvec.tolist(), -1)
                return torch.stack([component.argmax(-1) for component in parts], -1) + start
            return uniform.argmax(-1) + start

        return act

    return player


def wins_or_blocks(seed: int = 0) -> Player:
    """Returns a player of ConnectFour and of games alike that wins at once if it can, or else blocks a line of four at once.

    Without either it draws an allowed column. It looks no further, and so meets two threats at the same time helplessly.

    Args:
        seed: of the columns that are drawn.
    """

    def player(envs: TrainingEnv) -> Act:
        generator = torch.Generator(envs.device).manual_seed(seed)
        return partial(win_or_block, generator=generator)

    return player


def win_or_block(obs: Tensor, action_mask: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns columns, (...): one that completes a line of four, or else one where the other would, or else any allowed one.

    Args:
        obs: (..., 2, H, W): the player's own pieces and those of the other, which fall to the last row.
        action_mask: (..., W) bool: columns that are not full.
        generator: of the draw among equally good columns; None for torch's global one.
    """
    pieces = obs > 0
    is_empty = ~pieces.any(-3)
    is_supported = torch.nn.functional.pad(~is_empty, (0, 0, 0, 1), value=True)[..., 1:, :]
    ends_line = _completes_line(pieces) & (is_empty & is_supported).unsqueeze(-3)
    wins, blocks = ends_line.any(-2).unbind(-2)  # (..., W)
    choices = action_mask
    for better in (blocks, wins):
        choices = torch.where(better.any(-1, keepdim=True), better, choices)
    return torch.rand(choices.shape, generator=generator, device=obs.device).masked_fill_(~choices, -1.0).argmax(-1)


def _completes_line(pieces: Tensor) -> Tensor:
    """Returns, (..., H, W) bool, at which cells another piece would complete a line of four `pieces`, (..., H, W) bool."""
    height, width = pieces.shape[-2:]
    padded, completes = torch.nn.functional.pad(pieces, (3, 3, 3, 3)), torch.zeros_like(pieces)
    for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
        neighbors = {
            k: padded[..., 3 + k * dy : 3 + k * dy + height, 3 + k * dx : 3 + k * dx + width] for k in range(-3, 4) if k
        }
        for first in range(-3, 1):
            others = [neighbors[k] for k in range(first, first + 4) if k]
            completes |= others[0] & others[1] & others[2]
    return completes


def by_agent(players: Sequence[Player]) -> Player:
    """Returns a player in which each agent is played by another one.

    Args:
        players: that of each agent; all get the observations of all agents.
    """

    def player(envs: TrainingEnv) -> Act:
        acts = [one(envs) for one in players]

        def act(*inputs: Tensor) -> Tensor:
            return torch.stack([act(*inputs)[:, agent] for agent, act in enumerate(acts)], 1)

        return act

    return player


class RoleView:
    """An environment as the player of one role sees it if roles have spaces of their own.

    Args:
        envs: the environment.
        role: the role.
    """

    is_multi_agent = True

    def __init__(self, envs: TrainingEnv, role: str) -> None:
        self.single_observation_space = envs.single_observation_space[role]  # type: ignore[index]  # a Dict space
        self.single_action_space = envs.single_action_space[role]  # type: ignore[index]  # a Dict space
        self.num_envs, self.device, self.roles = envs.num_envs, envs.device, dict[str, Any]()
        self.unwrapped = self


def by_role(players: Mapping[str, Player]) -> Player:
    """Returns a player that acts for each role by another one.

    Args:
        players: {role: player}; each gets the observations of all agents, and its actions are used for its own role. If roles
            have spaces of their own, each gets the observations of its role, and a `RoleView` as its environment.

    Raises:
        ValueError: the environment has other roles; raised by the player.
    """

    def player(envs: TrainingEnv) -> Act:
        roles = envs.roles
        if roles.keys() != players.keys():
            raise ValueError(
                f"there must be a player for each role, {', '.join(roles)}; there is one for {', '.join(players)}."
            )
        if has_role_spaces(envs):
            acts_by_name = {role: one(cast(TrainingEnv, RoleView(envs, role))) for role, one in players.items()}

            def act_of_roles(*inputs: Any) -> Any:
                return {role: role_act(*(x[role] for x in inputs if role in x)) for role, role_act in acts_by_name.items()}

            return act_of_roles
        acts = [(roles[role], role_player(envs)) for role, role_player in players.items()]

        def act(*inputs: Tensor) -> Tensor:
            (_, first_act), *rest = acts
            actions = first_act(*inputs).clone()
            for agents, role_act in rest:
                actions[:, agents] = role_act(*inputs)[:, agents].to(actions.dtype)
            return actions

        return act

    return player
