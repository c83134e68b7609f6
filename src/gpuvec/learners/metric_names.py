"""The parts of the names of metrics: those of a role begin with it, and those of an environment with "metrics"."""

from __future__ import annotations

ENV_METRICS = "metrics"
"""The first part of the names that an environment's own metrics have among those of a training, "metrics/grass"."""
EVAL_RETURN, EVAL_LENGTH = "eval_return", "eval_length"
"""The metrics of an evaluation during a training: means over its episodes, and over the agents of a policy."""
EPISODE_METRICS = ("episodes", "return", "length", "last_return", "last_return_share")
"""The metrics of the episodes of a policy. The first three are of the episodes that ended in the iteration, of which more are
short ones than of all episodes. `last_return` is the mean return of the last finished episode of each row that has one, and
`last_return_share` the number of these rows divided by that of all rows that have acted. Short episodes are preferred by
`last_return` too until its share is 1."""
PROGRESS_METRICS = ("iteration", "steps", "seconds", "steps_per_second", "gpu_memory")
"""The metrics of a training that belong to no policy and to no environment."""


def role_and_name(name: str) -> tuple[str, str]:
    """Splits the name of a metric.

    Args:
        name: the name in metrics.jsonl, such as "return", "wolves/return" or "metrics/grass".

    Returns:
        The role, "" for a policy that all agents share, "metrics" for the environment; and the name of the metric without it.
    """
    role, _, metric_name = name.rpartition("/")
    return role, metric_name


def is_of_policy(name: str, metric_name: str) -> bool:
    """Whether `name` is a metric of a policy, of all agents or of a role: `metric_name`, or `metric_name` after a role.

    Args:
        name: the name in metrics.jsonl.
        metric_name: the name of the metric without a role.
    """
    role, own_name = role_and_name(name)
    return own_name == metric_name and role != ENV_METRICS
