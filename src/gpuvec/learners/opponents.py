"""Policies that act and do not learn: one that was trained before, or a function of the observations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.guard import ALLOWED, Guard
from gpuvec.learners.environments import find_agent_spaces
from gpuvec.learners.evaluation.evaluate import load_policy, trained_role
from gpuvec.learners.evaluation.players import Draws, Player, action_distribution, policy
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.policy import Policy, PolicyContext
from gpuvec.learners.runs.checkpoint import load


@dataclass(frozen=True)
class Frozen:
    """A policy of a checkpoint, which does not learn."""

    checkpoint: Path | str | Mapping[str, Any]
    """A run folder, a file in one, or the result of `Learner.state_dict`."""
    role: str | None = None
    """The role of the policy, if the checkpoint has several policies."""
    greedy: bool = False
    """Take the likeliest action instead of drawing one."""
    body: Body | None = None
    """The function that made its network; None for the default."""


@dataclass(frozen=True)
class Scripted:
    """A policy that is a function."""

    act: Callable[..., Tensor]
    """Returns actions, (R, ...) as the environment takes them, for observations, (R, D).

    In environments with action masks the mask, (R, N) bool, is the second argument. A function that draws numbers draws them
    from its parameter `generator`, a `torch.Generator` of the training, so that evaluations and checkpoints do not change what
    is drawn. A CUDA graph must be able to capture the function.
    """


class FrozenPolicy(Policy):
    """The policy of a `Frozen`.

    Args:
        config: the checkpoint and the role.
        args: the settings of the training.
        context: spaces, rollout and role of the policy.

    Raises:
        StateError: its network was trained for other observations or actions.
    """

    network: Any  # a `PolicyNetwork`

    def __init__(self, config: Frozen, args: TrainingArgs, context: PolicyContext) -> None:
        super().__init__(args, context)
        checks = {"act": (ALLOWED,)} if context.has_action_mask else {}
        self.guard, self._greedy = Guard(checks, {}, args.device), config.greedy
        checkpoint = config.checkpoint if isinstance(config.checkpoint, Mapping) else load(config.checkpoint)
        trained_args, self.network = load_policy(checkpoint, args.device, config.body, config.role)
        role = trained_role(checkpoint, config.role)
        observation, action = find_agent_spaces(trained_args.env, trained_args.params, args.device, role)[:2]
        if observation.shape != context.observation_space.shape or action != context.action_space:
            raise StateError(
                f"the frozen policy, of {trained_args.env}, is for {observation} and {action}; here an agent has "
                f"{context.observation_space} and {context.action_space}."
            )

    @torch.no_grad()
    def act(self, t: int, episode_start: Tensor) -> Tensor:
        """Returns the actions of the network in step `t`, (R, ...); `episode_start` is not used."""
        actions = action_distribution(self.network, self.rows.obs[t], self.rows.action_mask_at(t))
        action = actions.mode() if self._greedy else actions.draw(self.sampler, self.num_rollouts, t).action
        control: Tensor = self.network.control(action)
        return control

    def player(self, seed: int, draws: Draws) -> Player:
        """Returns a player that acts as the policy does in the training, with or without draws.

        Args:
            seed: of the actions that are drawn.
            draws: numbers them.
        """
        return policy(self.network, greedy=self._greedy, seed=seed, draws=draws)

    def finish_rollout(self) -> None:
        """Counts the rollout, and checks that each row had an allowed action in each step."""
        super().finish_rollout()
        rows = self.rows
        if rows.action_mask is not None:
            self.guard.check_allowed(self.network.any_allowed(rows.obs[:-1], rows.action_mask[:-1]), rows.mask)

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors that the next iteration depends on, as nested dicts."""
        return {"network": self.network.state_dict(), **super().state_tensors()}


class ScriptedPolicy(Policy):
    """The policy of a `Scripted`.

    Args:
        config: the function.
        args: the settings of the training.
        context: spaces, rollout and role of the policy.

    Raises:
        ValueError: the function returns actions of another shape, or draws from torch's global generator.
    """

    def __init__(self, config: Scripted, args: TrainingArgs, context: PolicyContext) -> None:
        super().__init__(args, context)
        self.guard, self._act = Guard({}, {}, args.device), config.act
        self._draws = "generator" in inspect.signature(config.act).parameters
        obs, space = self.rows.obs[0], context.action_space
        self._obs_dim = obs.dim() - 1  # of one agent
        before, draws = _global_generator_state(args.device), self.generator.get_state()
        shape, expected = tuple(self._actions_at(0).shape), (len(obs), *(space.shape or ()))
        self.generator.set_state(draws)
        if not torch.equal(before, _global_generator_state(args.device)):
            raise ValueError(
                "the scripted policy draws from torch's global generator, which evaluations would advance and no checkpoint "
                "has: give the function a parameter `generator`, and draw from it."
            )
        if shape != expected:
            raise ValueError(f"the scripted policy returns actions of shape {shape}; for {space} it must return {expected}.")

    def act(self, t: int, episode_start: Tensor) -> Tensor:
        """Returns the actions of the function in step `t`, (R, ...); `episode_start` is not used."""
        return self._actions_at(t)

    def player(self, seed: int, draws: Draws) -> Player:
        """Returns a player that acts by the function, which gets the rows of all environments.

        Args:
            seed: of what the function draws.
            draws: numbers its draws.
        """
        generator = draws.generator(seed)

        def act(*inputs: Tensor) -> Tensor:
            leading = inputs[0].shape[: inputs[0].dim() - self._obs_dim]
            rows = (x.flatten(0, len(leading) - 1) for x in inputs)
            return self._actions(generator, *rows).unflatten(0, leading)  # type: ignore[no-any-return]  # of torch

        return lambda envs: act

    def _actions_at(self, t: int) -> Tensor:
        action_mask = self.rows.action_mask_at(t)
        return self._actions(self.generator, self.rows.obs[t], *([] if action_mask is None else [action_mask]))

    def _actions(self, generator: torch.Generator, *inputs: Tensor) -> Tensor:
        return self._act(*inputs, generator=generator) if self._draws else self._act(*inputs)


def _global_generator_state(device: str) -> Tensor:
    """Returns the state of torch's global generator of a device, (N,) uint8."""
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state(device)
