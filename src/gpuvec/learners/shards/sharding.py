"""Checks that the environments of a training can be divided into shards, and those into processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.config.training_config import DDPGArgs, TrainingArgs
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.torchrun import Sharding, Sync, number_of_shards


def divide(configs: Mapping[str, Any], sharding: Sharding, iteration: int, joined: Processes) -> tuple[Processes, int]:
    """Returns the processes of a training, and its number of shards, after a check that the processes agree.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        sharding: as the user wants it.
        iteration: that of the checkpoint from which the training continues; 0 for none.
        joined: the processes that torchrun started.

    Raises:
        ProcessesError: the processes have other settings.
        ValueError: a number that is not divided; the message says what to change.
        LostProcessError: another process ended.
    """
    processes = replace(joined, deterministic=sharding.deterministic_shards)
    count = number_of_shards(sharding, processes.size)
    processes.require_equal(
        {
            "sync": sharding.sync,
            "shards": str(count),
            "deterministic_shards": str(sharding.deterministic_shards),
            "iteration of the checkpoint": str(iteration),
            **comparable_settings(configs),
        }
    )
    require_divisible(configs, count, processes, sharding.sync)
    return processes, count


def require_divisible(configs: Mapping[str, Any], shards: int, processes: Processes, sync: Sync = "gradient") -> None:
    """Checks that shards divide the settings of a training, and that processes divide the shards.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        shards: the number of shards.
        processes: the processes of the training.
        sync: what the processes exchange.

    Raises:
        ValueError: a number that is not divided; the message says what to change.
    """
    if shards < 1:
        raise ValueError(f"shards must be at least 1, got {shards}.")
    if sync == "iteration" and shards != processes.size:
        raise ValueError(
            f"sync='iteration' has one shard for each of {processes.size} processes, got shards={shards}: leave out shards, "
            "and continue a run with as many processes as it was started with."
        )
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
        if isinstance(args, DDPGArgs) and sync == "gradient":
            numbers["batch_size"] = args.batch_size
        for name, number in numbers.items():
            if number % shards:
                raise ValueError(f"{name} must be a multiple of the number of shards, got {number} and {shards}.")
        num_minibatches = getattr(args, "num_minibatches", 1)  # of PPO, and of algorithms of users
        if args.steps_per_iteration // shards % num_minibatches:
            raise ValueError(
                f"num_envs * num_steps / shards must be a multiple of num_minibatches, got {args.num_envs} * {args.num_steps} "
                f"/ {shards} and {num_minibatches}."
            )


def comparable_settings(configs: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings on which the processes of a training must agree, as text.

    Args:
        configs: {role: settings, resolved, or an opponent}.
    """
    values = {"policies": ", ".join(configs)}
    for role, config in configs.items():
        settings = args_to_dict(config) if isinstance(config, TrainingArgs) else {"policy": type(config).__name__}
        prefix = f"{role}/" if len(configs) > 1 else ""
        values |= {f"{prefix}{name}": json.dumps(value) for name, value in settings.items() if name != "device"}
    return values
