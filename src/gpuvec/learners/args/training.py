"""Settings of learners, apart from them, so that a command line can list them without importing torch."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

from gpuvec.learners.args.schedule import Table, ascending
from gpuvec.learners.args.types import in_words, matches, setting_types

MAX_COUNT = 2**63 - 1  # of anything that is counted
MAX_THREADS = 1024  # beyond, PyTorch fails to start them, and ends the process

A = TypeVar("A", bound="TrainingArgs")


@dataclass(frozen=True)
class TrainingArgs:
    """What all learners share.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    env: str = "gpuvec/CartPole-v1"
    """Id of a gpuvec environment."""
    params: dict[str, bool | int | float] = field(default_factory=dict)
    """The environment's own parameters, such as gravity."""
    backend: Literal["numba", "cuda-c"] = "numba"
    """cuda-c trains on a GPU with the functions that the environment has in CUDA C++."""
    seed: int = 1
    """Of the environments, the first weights, the actions and the minibatches."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1; auto is a GPU if there is one."""
    num_envs: int | None = None
    """Environments that step together; by default 128 on a CPU and 4096 on a GPU."""
    num_steps: int = 32
    """Steps of each environment per iteration, T."""
    total_steps: int | None = None
    """Environment steps in all, rounded up to whole iterations; by default those of `num_iterations`."""
    num_iterations: int = 128
    """Rollouts in all, if total_steps is not given."""
    target_return: float | None = None
    """Stop once the mean over all environments of the last episode's return reaches this, and an evaluation confirms it."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers of the policy, and likewise of the value function."""
    reward_scale: float = 1.0
    """What rewards are multiplied with before anything is learned from them; the returns that are shown are not."""
    normalize: bool = False
    """Give the networks observations in units of their running standard deviation, around their running mean."""
    threads: int = 1
    """PyTorch's threads on the CPU. For networks this small more gain little, and lose much where others use the cores."""

    counts: ClassVar[tuple[str, ...]] = ("num_envs", "num_steps", "total_steps", "num_iterations", "threads")
    """Settings that count something, so that they are at least 1."""

    def __post_init__(self) -> None:
        require = self._require
        hints = setting_types(type(self))
        for name in self.counts:
            optional = matches(None, hints[name])
            holds = self._counts(name) or (optional and getattr(self, name) is None)
            require(name, "an integer of at least 1" + (" or None" if optional else ""), holds)
        require("threads", f"at most {MAX_THREADS}", self.threads <= MAX_THREADS)
        for name, hint in hints.items():
            require(name, in_words(hint), matches(getattr(self, name), hint))
        require("device", "auto, cpu, cuda or cuda:<index>", bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device)))
        require("backend", "numba or cuda-c", self.backend in ("numba", "cuda-c"))
        require("seed", "an integer from 0 to 2**63 - 1", isinstance(self.seed, int) and 0 <= self.seed < 2**63)
        require("reward_scale", "above 0", self.reward_scale > 0.0)
        require("hidden", "sizes of at least 1", all(size >= 1 for size in self.hidden))

    def _require(self, name: str, allowed: str, holds: bool) -> None:
        if not holds:
            raise ValueError(f"{name} must be {allowed}, got {reprlib.repr(getattr(self, name))}.")

    def _counts(self, name: str) -> bool:
        value = getattr(self, name)
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT

    def resolved(self: A, device: str) -> A:
        """With nothing left open, for "cpu" or "cuda:<index>"."""
        num_envs = self.num_envs or (128 if device == "cpu" else 4096)
        total_steps = self.total_steps or self.num_iterations * num_envs * self.num_steps
        return dataclasses.replace(self, device=device, num_envs=num_envs, total_steps=total_steps)

    @property
    def batch_size(self) -> int:
        """Environment steps per iteration, E * T."""
        return self._known("num_envs") * self.num_steps

    @property
    def iterations(self) -> int:
        """Rollouts in all."""
        return -(-self._known("total_steps") // self.batch_size)

    def _known(self, name: str) -> int:
        value: int | None = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} depends on the device: ask Args.resolved(device) for it.")
        return value


@dataclass(frozen=True)
class OnPolicyArgs(TrainingArgs):
    """What A2C and PPO share.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    learning_rate: float = 2.5e-3
    """Adam's step size."""
    anneal: bool = True
    """Let the learning rate fall linearly to 0."""
    learning_rate_table: Table = ()
    """Environment steps and step sizes, with straight lines between them, in place of learning_rate and anneal."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    value_weight: float = 0.5
    """Of the value loss."""
    entropy_weight: float = 0.01
    """Of the entropy bonus."""
    entropy_table: Table = ()
    """Likewise environment steps and weights, in place of entropy_weight."""
    normalize_returns: bool = False
    """Learn from rewards in units of the running standard deviation of discounted returns."""
    max_grad_norm: float = 0.5
    """Limit of the norm of the whole gradient."""
    shared: bool = False
    """Let policy and value function have their hidden layers in common."""
    init: Literal["orthogonal", "xavier"] = "orthogonal"
    """How the first weights are drawn."""
    unit: Literal["tanh", "relu"] = "tanh"
    """What is between the layers."""
    precision: Literal["tf32", "bf16"] = "tf32"
    """Of the layers: tf32 (on a CPU float32), or bf16, which halves what activations take and rounds them to 8 bits."""
    compile: bool = False
    """Compile the loss with torch.compile."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require = self._require
        require("learning_rate", "above 0", self.learning_rate > 0.0)
        require("gamma", "from 0 to 1", 0.0 <= self.gamma <= 1.0)
        require("gae_lambda", "from 0 to 1", 0.0 <= self.gae_lambda <= 1.0)
        require("value_weight", "at least 0", self.value_weight >= 0.0)
        require("entropy_weight", "at least 0", self.entropy_weight >= 0.0)
        for name in ("learning_rate_table", "entropy_table"):
            rising = "pairs of environment steps, each above the one before, and a value of at least 0"
            require(name, rising, ascending(getattr(self, name)))
        require("max_grad_norm", "above 0", self.max_grad_norm > 0.0)
        require("init", "orthogonal or xavier", self.init in ("orthogonal", "xavier"))
        require("unit", "tanh or relu", self.unit in ("tanh", "relu"))
        require("precision", "tf32 or bf16", self.precision in ("tf32", "bf16"))
        require("hidden", "sizes of at least one layer, which is shared", bool(self.hidden) or not self.shared)
