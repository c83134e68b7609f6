"""The parts of the names of metrics: those of a role begin with it, and those of an environment with "metrics"."""

from __future__ import annotations

ENV_METRICS = "metrics"  # as in gpuvec.learners.environments, which imports Numba
PROGRESS_METRICS = ("iteration", "steps", "seconds", "steps_per_second", "gpu_memory")
"""The metrics of a training that belong to no policy and to no environment."""


def role_and_name(name: str) -> tuple[str, str]:
    """Splits the name of a metric.

    Args:
        name: the name in metrics.jsonl, such as "return", "wolves/return" or "metrics/grass".

    Returns:
        The role, "" for a policy that all agents share, "metrics" for the environment; and the name of the metric without it.
    """
    role, _, metric = name.rpartition("/")
    return role, metric
