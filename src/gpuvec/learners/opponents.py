"""Policies that play and do not learn: one that was trained before, or a function of what is observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.guard import Guard
from gpuvec.learners.evaluation.evaluate import agent_spaces, load_policy
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.policy import Policy, PolicyContext
from gpuvec.learners.runs.checkpoint import load


@dataclass(frozen=True)
class Frozen:
    """The policy of a checkpoint, or of a role in one, as it is."""

    checkpoint: Path | str | Mapping[str, Any]
    """A run folder, a file in one, or what `Learner.state_dict` gave."""
    role: str | None = None
    """Whose, if the checkpoint has several."""
    greedy: bool = False
    """Take the likeliest action instead of drawing one."""
    body: Body | None = None
    """What made its network, if it was one's own."""


@dataclass(frozen=True)
class Scripted:
    """What a function says."""

    act: Callable[[Tensor], Tensor]
    """Actions (R, ...) as the environment takes them, for observations (R, D): by operations of torch that a graph can hold."""


class FrozenPolicy(Policy):
    """`given` in the context of a training with settings `args`.

    Raises:
        StateError: its networks were trained for other observations or actions.
    """

    def __init__(self, given: Frozen, args: TrainingArgs, context: PolicyContext) -> None:
        super().__init__(args, context)
        self.guard, self._greedy = Guard({}, {}, args.device), given.greedy
        checkpoint = given.checkpoint if isinstance(given.checkpoint, Mapping) else load(given.checkpoint)
        settings, self.network = load_policy(checkpoint, args.device, given.body, given.role)
        observation, action = agent_spaces(settings, args.device)
        if observation.shape != context.observation_space.shape or action != context.action_space:
            raise StateError(
                f"the frozen policy, of {settings.env}, is for {observation} and {action}; here an agent has "
                f"{context.observation_space} and {context.action_space}."
            )

    @torch.no_grad()
    def act(self, t: int, began: Tensor) -> Tensor:
        """As it was trained to."""
        found = self.network.policy(self.rows.obs[t])
        action: Tensor = self.network.control(found.mode() if self._greedy else found.draw(self.sampler, self.rounds, t).action)
        return action

    def tensors(self) -> dict[str, Any]:
        """How often it played, and what by."""
        return {"network": self.network.state_dict(), **super().tensors()}


class ScriptedPolicy(Policy):
    """`given` in the context of a training with settings `args`.

    Raises:
        ValueError: it gives actions of another shape.
    """

    def __init__(self, given: Scripted, args: TrainingArgs, context: PolicyContext) -> None:
        super().__init__(args, context)
        self.guard, self._act = Guard({}, {}, args.device), given.act
        found, wanted = (
            tuple(given.act(context.rows.obs[0]).shape),
            (len(context.rows.obs[0]), *(context.action_space.shape or ())),
        )
        if found != wanted:
            raise ValueError(f"the script gives actions of shape {found}; for {context.action_space} it must give {wanted}.")

    def act(self, t: int, began: Tensor) -> Tensor:
        """As the function says."""
        return self._act(self.rows.obs[t])
