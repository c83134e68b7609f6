"""The settings of DDPG and TD3, which share their learner: TD3 has values for what it adds to DDPG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuvec.learners.config.training_config import TrainingArgs


@dataclass(frozen=True)
class DDPGArgs(TrainingArgs):
    """Settings of `gpuvec.learners.ddpg`.

    The defaults learn Pendulum-v1 and MountainCarContinuous-v0. They are the same on each device, because what is learned
    depends on the number of gradient steps for each environment step, and with it on the number of environments.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    num_envs: int | None = 64
    """Number of environments, E."""
    num_steps: int = 8
    """Steps of each environment per iteration, T."""
    num_iterations: int = 800
    """Number of iterations, if total_steps is not given."""
    normalize: bool = True
    """Normalize observations by their running mean and standard deviation."""
    n_step: int = 4
    """Actions whose rewards are summed before the value of the critic is added, at most num_steps."""
    gamma: float = 0.99
    """Discount factor."""
    buffer_size: int = 1_000_000
    """Transitions in the replay buffer."""
    learning_starts: int = 8192
    """Environment steps before the first update, with uniformly distributed actions; rounded up to whole iterations."""
    gradient_steps: int = 8
    """Gradient steps per iteration."""
    batch_size: int = 256
    """Transitions in a gradient step, at most buffer_size."""
    actor_learning_rate: float = 1e-3
    """Adam's step size for the policy."""
    critic_learning_rate: float = 1e-3
    """Adam's step size for the critics."""
    tau: float = 0.005
    """Step of the target networks towards the networks in an update, as a share of the difference."""
    sigma: float = 0.5
    """Standard deviation of the noise on actions, in half ranges of the action."""
    theta: float = 0.15
    """Share of the Ornstein-Uhlenbeck noise that decays in a step, as in the paper. With 1 steps are independent."""
    critics: int = 1
    """Number of critics: 1, or 2, of which the lower value is used."""
    policy_delay: int = 1
    """Updates of the critics for each update of the policy."""
    target_sigma: float = 0.0
    """Standard deviation of the noise on actions in targets, in half ranges of the action, clipped at 2.5 times that."""

    count_settings: ClassVar[tuple[str, ...]] = (
        *TrainingArgs.count_settings, "n_step", "buffer_size", "gradient_steps", "batch_size", "policy_delay"
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        require = self._require
        require("n_step", f"at most num_steps, {self.num_steps}", self.n_step <= self.num_steps)
        require("critics", "1 or 2", self.critics in (1, 2))
        require("gamma", "from 0 to 1", 0.0 <= self.gamma <= 1.0)
        require("tau", "above 0 and at most 1", 0.0 < self.tau <= 1.0)
        require("theta", "from 0 to 1", 0.0 <= self.theta <= 1.0)
        require("learning_starts", "at least 0", self.learning_starts >= 0)
        for name in ("sigma", "target_sigma"):
            require(name, "at least 0", getattr(self, name) >= 0.0)
        for name in ("actor_learning_rate", "critic_learning_rate"):
            require(name, "above 0", getattr(self, name) > 0.0)
        if self.num_envs is not None and self.buffer_size < self.steps_per_iteration:
            needed = f"an iteration, {self.steps_per_iteration} transitions"
            raise ValueError(f"buffer_size must hold {needed}, got {self.buffer_size}.")
        require("batch_size", f"at most buffer_size, {self.buffer_size}", self.batch_size <= self.buffer_size)

    @property
    def uniform_iterations(self) -> int:
        """Number of the first iterations in which actions are uniformly distributed; the last one makes the first update."""
        return -(-self.learning_starts // self.steps_per_iteration)


@dataclass(frozen=True)
class TD3Args(DDPGArgs):
    """Settings of TD3: Fujimoto, van Hoof and Meger, 2018, arXiv:1802.09477.

    The lower value of two critics is the target, the policy is updated after every second update of the critics, and clipped
    noise smooths the actions of the targets. As in the paper, returns have one step, and the noise on actions is Gaussian,
    independent from step to step.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    n_step: int = 1
    """Actions whose rewards are summed before the value of the critics is added, at most num_steps."""
    sigma: float = 0.1
    """Standard deviation of the noise on actions, in half ranges of the action."""
    theta: float = 1.0
    """Share of the noise that decays in a step. With 1 steps are independent."""
    critics: int = 2
    """Number of critics: 2, of which the lower value is used."""
    policy_delay: int = 2
    """Updates of the critics for each update of the policy."""
    target_sigma: float = 0.2
    """Standard deviation of the noise on actions in targets, in half ranges of the action, clipped at 2.5 times that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("critics", "2 (DDPG can have one)", self.critics == 2)
