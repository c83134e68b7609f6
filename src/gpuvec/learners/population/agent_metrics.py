"""The names of the numbers that a population reports for each agent. This module imports no torch."""

from __future__ import annotations

from gpuvec.learners.metric_names import EPISODE_METRICS

LOSS_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
METRICS = (*EPISODE_METRICS, *LOSS_METRICS, "grad_norm")
"""The numbers of an agent in an iteration; the names are those of the metrics of a single training."""
RUNNING = -1  # in place of the iteration in which an agent was stopped
FAULTS = ("none", "a reward or a log-probability", "a value or an advantage", "the gradient")
"""What was not finite when an agent was stopped, by its number in `AgentState.fault`."""
