"""The settings of DDPG, and of TD3, which is DDPG with two critics, a delayed policy and noisy targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuvec.learners.args.training import TrainingArgs


@dataclass(frozen=True)
class Args(TrainingArgs):
    """Settings of `gpuvec.learners.ddpg`.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    num_steps: int = 4
    """Steps of each environment per iteration, T."""
    n_step: int = 1
    """Rewards that are added up before a critic is asked, at most T."""
    gamma: float = 0.99
    """Discount factor."""
    capacity: int = 1_000_000
    """Transitions that are remembered."""
    learning_starts: int = 10_000
    """Environment steps before the first update."""
    updates: int = 8
    """Gradient steps per iteration."""
    minibatch: int = 512
    """Transitions of each."""
    actor_learning_rate: float = 1e-3
    """Adam's step size for the policy."""
    critic_learning_rate: float = 1e-3
    """Adam's step size for the critics."""
    tau: float = 0.005
    """How much of the networks the targets take over in an update."""
    sigma: float = 0.1
    """Of the noise, in half ranges of the action."""
    theta: float = 1.0
    """Of the noise of Ornstein and Uhlenbeck: what fades in a step. With 1 it is independent, the paper has 0.15."""
    critics: int = 1
    """1, or 2 of which the lower one counts."""
    policy_delay: int = 1
    """Updates of the critics for each one of the policy."""
    target_sigma: float = 0.0
    """Of the noise on the actions that targets are asked for, in half ranges, clipped at 2.5 times that."""

    counts: ClassVar[tuple[str, ...]] = (
        *TrainingArgs.counts, "n_step", "capacity", "updates", "minibatch", "policy_delay"
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        require = self._require
        require("n_step", f"at most num_steps, {self.num_steps}", self.n_step <= self.num_steps)
        require("minibatch", f"at most capacity, {self.capacity}", self.minibatch <= self.capacity)
        require("critics", "1 or 2", self.critics in (1, 2))
        require("gamma", "from 0 to 1", 0.0 <= self.gamma <= 1.0)
        require("tau", "above 0 and at most 1", 0.0 < self.tau <= 1.0)
        require("theta", "from 0 to 1", 0.0 <= self.theta <= 1.0)
        require("learning_starts", "at least 0", self.learning_starts >= 0)
        for name in ("sigma", "target_sigma"):
            require(name, "at least 0", getattr(self, name) >= 0.0)
        for name in ("actor_learning_rate", "critic_learning_rate"):
            require(name, "above 0", getattr(self, name) > 0.0)
        if self.num_envs is not None and self.capacity < self.batch_size:
            raise ValueError(f"capacity must hold an iteration, {self.batch_size} transitions, got {self.capacity}.")
