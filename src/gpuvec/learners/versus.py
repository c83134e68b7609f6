"""Roles that are played by different players."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gpuvec.learners.evaluate import Player, play

TAG = "gpuvec/TagContinuous-v0"


def at_random(seed: int = 0) -> Player:
    """Who draws actions uniformly from a Discrete or MultiDiscrete space."""

    def player(envs: Any) -> Callable[[Tensor], Tensor]:
        generator = torch.Generator(envs.device).manual_seed(seed)
        space = envs.single_action_space
        size, start = (torch.as_tensor(x, device=envs.device) for x in (space.nvec, space.start))

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


def caught(
    taggers: Player,
    runners: Player | None = None,
    *,
    params: Mapping[str, Any],
    episodes: int = 1000,
    seed: int = 0,
    device: str = "auto",
) -> float:
    """The share of runners that taggers get in TagContinuous, whose runners leave the game when they are tagged.

    Args:
        taggers: who plays the taggers.
        runners: who plays the runners; by default they move at random.
        params: the game's parameters.
        episodes, seed, device: as in `evaluate.play`.
    """
    both = by_role({"tagger": taggers, "runner": runners or at_random(seed)})
    found = play(TAG, both, episodes=episodes, seed=seed, device=device, params=params)
    return float(found.left[:, found.roles["runner"]].double().mean())
