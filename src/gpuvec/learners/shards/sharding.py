"""Checks that the environments of a training can be divided into shards, and those into processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.config.ddpg_config import DDPGArgs
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.torchrun import Sharding, number_of_shards


def divide(configs: Mapping[str, Any], shards: int | None, deterministic: bool, joined: Processes) -> tuple[Processes, int]:
    """Returns the processes of a training, and its number of shards, after a check that the processes agree.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        shards: the number of shards; None for the default.
        deterministic: whether shards are added in a fixed order.
        joined: the processes that torchrun started.

    Raises:
        ProcessesError: the processes have other settings.
        ValueError: a number that is not divided; the message says what to change.
        LostProcessError: another process ended.
    """
    processes = replace(joined, deterministic=deterministic)
    count = number_of_shards(Sharding(shards, deterministic), processes.size)
    processes.require_equal(comparable_settings(configs, count, deterministic))
    require_divisible(configs, count, processes)
    return processes, count


def require_divisible(configs: Mapping[str, Any], shards: int, processes: Processes) -> None:
    """Checks that shards divide the settings of a training, and that processes divide the shards.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        shards: the number of shards.
        processes: the processes of the training.

    Raises:
        ValueError: a number that is not divided; the message says what to change.
    """
    if shards < 1:
        raise ValueError(f"shards must be at least 1, got {shards}.")
    if not processes.deterministic and shards != processes.size:
        raise ValueError(
            f"deterministic_shards=False has one shard for each of {processes.size} processes, got shards={shards}: leave out "
            "shards."
        )
    if shards % processes.size:
        raise ValueError(
            f"the number of processes must divide that of shards, got {processes.size} processes and {shards} shards: start "
            f"another number of processes, or give --shards {processes.size}."
        )
    for args in configs.values():
        if not isinstance(args, TrainingArgs) or shards == 1:
            continue
        numbers = {"num_envs": args.num_envs or 0}
        if isinstance(args, DDPGArgs):
            numbers["batch_size"] = args.batch_size
        for name, number in numbers.items():
            if number % shards:
                raise ValueError(f"{name} must be a multiple of the number of shards, got {number} and {shards}.")
        if isinstance(args, PPOArgs) and args.steps_per_iteration // shards % args.num_minibatches:
            raise ValueError(
                f"num_envs * num_steps / shards must be a multiple of num_minibatches, got {args.num_envs} * {args.num_steps} "
                f"/ {shards} and {args.num_minibatches}."
            )


def comparable_settings(configs: Mapping[str, Any], shards: int, deterministic: bool) -> dict[str, str]:
    """Returns the settings on which the processes of a training must agree, as text.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        shards: the number of shards.
        deterministic: whether shards are added in a fixed order.
    """
    values = {"shards": str(shards), "deterministic_shards": str(deterministic), "policies": ", ".join(configs)}
    for role, config in configs.items():
        settings = args_to_dict(config) if isinstance(config, TrainingArgs) else {"policy": type(config).__name__}
        prefix = f"{role}/" if len(configs) > 1 else ""
        values |= {f"{prefix}{name}": json.dumps(value) for name, value in settings.items() if name != "device"}
    return values
