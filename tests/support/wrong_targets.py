"""Comparisons of an environment with a second implementation of it, which stands for a target with other results."""

from __future__ import annotations

from gpuvec.testing.target_check.target_comparison import ComparisonJob

CPU_OPTIONS = {"device": "cpu", "output": "numpy"}


def comparison_with(right, wrong, **options):
    """Returns a job that compares the environment of module `right` with that of module `wrong` as the wrong target."""
    options = {**CPU_OPTIONS, "env": f"{wrong}:ENV", **options}
    return ComparisonJob(
        f"{right}:tests/{right}-v0", "wrong", options, {}, 3, episodes=2, max_episode_steps=8, modes=("NextStep",)
    )
