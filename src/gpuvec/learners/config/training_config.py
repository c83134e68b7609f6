"""The settings of the algorithms. This module imports no torch, so that the command line can list them quickly."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

from gpuvec.learners.config.schedule import Schedule, is_ascending
from gpuvec.learners.config.setting_types import describe_type, is_finite, matches_type, setting_types

PACKAGE = __name__.partition(".")[0]
MAX_COUNT = 2**63 - 1  # of anything that is counted
MAX_THREADS = 1024  # PyTorch fails to start more, and ends the process
EVALUATIONS_FOR_TARGET = 32  # in a training that has a target and no interval of evaluations

A = TypeVar("A", bound="TrainingArgs")


@dataclass(frozen=True)
class TrainingArgs:
    """The settings that all learners share.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    env: str = "gpuvec/CartPole-v1"
    """Id of an environment of gpuvec, or module:id to import the module first."""
    params: dict[str, bool | int | float] = field(default_factory=dict)
    """Parameters of the environment, such as gravity, and max_episode_steps."""
    backend: Literal["numba", "cuda-c"] = "numba"
    """cuda-c trains with the functions that the environment has in CUDA C++."""
    seed: int = 1
    """Seed of the environments, from which those of initial weights, actions and minibatches are derived."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1; auto is a GPU if there is one."""
    num_envs: int | None = None
    """Number of environments, E."""
    num_steps: int = 32
    """Steps of each environment per iteration, T."""
    total_steps: int | None = None
    """Total number of environment steps, rounded up to whole iterations. By default that of num_iterations."""
    num_iterations: int = 128
    """Number of iterations, if total_steps is not given."""
    evaluate_every: int | None = None
    """Evaluate the policy after every so many iterations, in environments of its own; the training is the same. By default
    never, and with target_return about 32 times in the training."""
    evaluate_episodes: int = 32
    """Number of episodes of such an evaluation, each the first one of its environment, with actions that are drawn."""
    evaluate_params: dict[str, bool | int | float] = field(default_factory=dict)
    """Parameters of the environment in evaluations, during the training and at its end. Others are the environment's own, but
    those of `params` on which spaces, agents or roles depend are kept."""
    target_return: float | None = None
    """Stop when the mean return of an evaluation reaches this."""
    network: str | None = None
    """Class of the network of your own as module:Class, instead of that of `hidden`. It is made of the observation space, the
    action space, for observations of a critic their space, and the arguments in network_args."""
    network_args: dict[str, bool | int | float | str | tuple[int, ...]] = field(default_factory=dict)
    """Arguments of the class in network, such as width=128."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers, of the policy and of the value function. For images a convolution precedes them."""
    reward_scale: float = 1.0
    """Factor of the rewards that are learned from. Reported returns do not contain it."""
    normalize: bool = False
    """Normalize observations by their running mean and standard deviation."""
    threads: int = 1
    """Threads of PyTorch on a CPU. Small networks gain little from more than one."""

    count_settings: ClassVar[tuple[str, ...]] = (
        "num_envs", "num_steps", "total_steps", "num_iterations", "evaluate_every", "evaluate_episodes", "threads"
    )  # fmt: skip
    """Names of the settings that are integers of at least 1."""

    def __post_init__(self) -> None:
        require = self._require
        # A subclass of a user may have fields of its own, of any types.
        hints = setting_types(next(cls for cls in type(self).__mro__ if cls.__module__.startswith(f"{PACKAGE}.")))
        for name in self.count_settings:
            value, optional = getattr(self, name), matches_type(None, hints[name])
            is_valid = (optional and value is None) or (matches_type(value, int) and 1 <= value <= MAX_COUNT)
            require(name, "an integer of at least 1" + (" or None" if optional else ""), is_valid)
        require("threads", f"at most {MAX_THREADS}", self.threads <= MAX_THREADS)
        for name, hint in hints.items():
            require(name, describe_type(hint), matches_type(getattr(self, name), hint))
            require(name, f"{describe_type(hint)}, finite in 32 bits", is_finite(getattr(self, name)))
        require("device", "auto, cpu, cuda or cuda:<index>", bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device)))
        require("seed", "an integer from 0 to 2**63 - 1", 0 <= self.seed < 2**63)
        require("reward_scale", "above 0", self.reward_scale > 0.0)
        require("hidden", "sizes of at least 1", all(size >= 1 for size in self.hidden))
        require("network", "module:Class or None", self.network is None or all(self.network.rpartition(":")))
        require("network_args", "empty without network", self.network is not None or not self.network_args)

    def _require(self, name: str, allowed: str, is_valid: bool) -> None:
        if not is_valid:
            raise ValueError(f"{name} must be {allowed}, got {reprlib.repr(getattr(self, name))}.")

    def resolved(self: A, device: str) -> A:
        """Returns the settings for `device`, "cpu" or "cuda:<index>", with values in place of None and "auto"."""
        num_envs = self.num_envs or (128 if device == "cpu" else 4096)
        total_steps = self.total_steps or self.num_iterations * num_envs * self.num_steps
        values = dataclasses.replace(self, device=device, num_envs=num_envs, total_steps=total_steps)
        if self.evaluate_every is None and self.target_return is not None:
            return dataclasses.replace(values, evaluate_every=max(1, values.iterations // EVALUATIONS_FOR_TARGET))
        return values

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps per iteration, E * T."""
        return self._resolved_value("num_envs") * self.num_steps

    @property
    def iterations(self) -> int:
        """Number of iterations of the training, each with a rollout."""
        return -(-self._resolved_value("total_steps") // self.steps_per_iteration)

    def _resolved_value(self, name: str) -> int:
        value: int | None = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} depends on the device: call resolved(device) for it.")
        return value


@dataclass(frozen=True)
class OnPolicyArgs(TrainingArgs):
    """The settings that A2C and PPO share.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    learning_rate: float = 2.5e-3
    """Adam's step size; with anneal_lr that of the first update."""
    anneal_lr: bool = True
    """Decrease the learning rate linearly to 0, where it stays if a learner iterates beyond the training."""
    learning_rate_table: Schedule = ()
    """Pairs of environment steps and learning rates, interpolated linearly, instead of learning_rate and anneal_lr."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    vf_coef: float = 0.5
    """Coefficient of the value loss."""
    ent_coef: float = 0.01
    """Coefficient of the entropy bonus."""
    ent_coef_table: Schedule = ()
    """Pairs of environment steps and coefficients of the entropy bonus, interpolated linearly, instead of ent_coef."""
    normalize_returns: bool = False
    """Divide rewards by the running standard deviation of discounted returns."""
    max_grad_norm: float = 0.5
    """Largest norm of the gradient; a larger one is scaled down."""
    shared: bool = False
    """Share the hidden layers between policy and value function. For images they are always shared, and never with observations
    of a critic."""
    weight_init: Literal["orthogonal", "xavier"] = "orthogonal"
    """Distribution of the initial weights."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function between the layers."""
    precision: Literal["tf32", "bf16"] = "tf32"
    """Number format of the layers: tf32 (on a CPU float32), or bf16, which needs half the memory and has 8 significant bits."""
    compile: bool = False
    """Compile the loss with torch.compile."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require = self._require
        require("learning_rate", "above 0", self.learning_rate > 0.0)
        require("gamma", "from 0 to 1", 0.0 <= self.gamma <= 1.0)
        require("gae_lambda", "from 0 to 1", 0.0 <= self.gae_lambda <= 1.0)
        require("vf_coef", "at least 0", self.vf_coef >= 0.0)
        require("ent_coef", "at least 0", self.ent_coef >= 0.0)
        for name in ("learning_rate_table", "ent_coef_table"):
            allowed = "pairs of environment steps, each above the one before, and a value of at least 0"
            require(name, allowed, is_ascending(getattr(self, name)))
        require("max_grad_norm", "above 0", self.max_grad_norm > 0.0)
        require("hidden", "sizes of at least one layer, which is shared", bool(self.hidden) or not self.shared)


@dataclass(frozen=True)
class PPOArgs(OnPolicyArgs):
    """Settings of `gpuvec.learners.ppo`.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    update_epochs: int = 4
    """Passes over a rollout."""
    num_minibatches: int = 4
    """Gradient steps per pass."""
    clip: float = 0.2
    """Epsilon: probability ratios are clipped to the range from 1 - clip to 1 + clip."""
    clip_value: bool = False
    """Clip the change of the value function, too. This slows learning if returns are large."""

    target_kl: float | None = None
    """Stop an update when the approximate KL divergence from the policy of the rollout exceeds this, in nats."""

    fused: Literal["auto"] | bool = "auto"
    """Run rollouts and updates in a few fused CUDA kernels; auto uses them on a GPU if they support the network."""

    count_settings: ClassVar[tuple[str, ...]] = (*OnPolicyArgs.count_settings, "update_epochs", "num_minibatches")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("target_kl", "above 0 or None", self.target_kl is None or self.target_kl > 0.0)
        self._require("clip", "above 0 and below 1", 0.0 < self.clip < 1.0)
        minibatches = self.num_minibatches
        if self.num_envs and (self.steps_per_iteration % minibatches or self.steps_per_iteration < 2 * minibatches):
            raise ValueError(
                f"num_envs * num_steps must be a multiple of num_minibatches, and at least twice it, "
                f"got {self.num_envs} * {self.num_steps} and {minibatches}."
            )


@dataclass(frozen=True)
class A2CArgs(OnPolicyArgs):
    """Settings of `gpuvec.learners.a2c`.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    num_steps: int = 8
    """Steps of each environment per iteration, T."""
    gae_lambda: float = 1.0
    """Lambda of generalised advantage estimation; 1 gives the n-step returns of the paper."""
    learning_rate: float = 5e-3
    """Adam's step size."""


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
