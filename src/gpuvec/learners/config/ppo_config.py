"""The settings of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gpuvec.learners.config.training_config import OnPolicyArgs


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
        self._require("fused", "auto, True or False", self.fused in ("auto", True, False))
        self._require("clip", "above 0 and below 1", 0.0 < self.clip < 1.0)
        if self.num_envs is None:
            return
        num_samples, num_minibatches = self.steps_per_iteration, self.num_minibatches
        if num_samples % num_minibatches or num_samples < 2 * num_minibatches:
            raise ValueError(
                f"num_envs * num_steps must be a multiple of num_minibatches, and at least twice it, "
                f"got {self.num_envs} * {self.num_steps} and {self.num_minibatches}."
            )
