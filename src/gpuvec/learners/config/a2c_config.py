"""The settings of A2C."""

from __future__ import annotations

from dataclasses import dataclass

from gpuvec.learners.config.training_config import OnPolicyArgs


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
