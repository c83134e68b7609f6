"""Chooses the number of environments of a training by measuring, and prints what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from gpuvec.cli.progress import waiting
from gpuvec.cli.text_table import print_table
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.shards.torchrun import Sharding

if TYPE_CHECKING:
    from gpuvec.learners.autoscale import Scale

A = TypeVar("A", bound=TrainingArgs)


def choose_scale(args: A, roles: Iterable[str], num_steps: int | None, sharding: Sharding) -> A:
    """Measures, prints a table, and returns the settings with the number of environments and the length of rollouts.

    Args:
        args: the settings of all policies.
        roles: of the policies.
        num_steps: the length of rollouts if it is given; None to choose it, too.
        sharding: how the environments are divided.
    """
    with waiting("measuring how many environments make most steps per second"):
        from gpuvec.learners.autoscale import autoscale

        scale = autoscale(dict.fromkeys(roles, args), num_steps=num_steps, **dataclasses.asdict(sharding))
    print_table(scale_rows(scale))
    return dataclasses.replace(args, num_envs=scale.num_envs, num_steps=scale.num_steps)


def scale_rows(scale: Scale) -> list[list[str]]:
    """Returns the rows of the table of all trials, with a mark at the sizes that were chosen.

    Args:
        scale: what `autoscale` returned.
    """
    rows = [["envs", "rollout", "steps/s", "memory", ""]]
    for trial in scale.trials:
        is_chosen = (trial.num_envs, trial.num_steps) == (scale.num_envs, scale.num_steps)
        speed = "-" if trial.steps_per_second is None else f"{trial.steps_per_second:,.0f}"
        memory = "-" if trial.num_bytes is None else f"{trial.num_bytes / 2**20:,.0f} MB"
        note = "chosen" if is_chosen else trial.reason and f"not run: {trial.reason}"
        rows.append([f"{trial.num_envs:,}", f"{trial.num_steps:,}", speed, memory, note])
    return rows
