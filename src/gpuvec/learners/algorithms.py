"""The algorithms by name. Importing this imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpuvec.learners.args import a2c, ddpg, ppo
from gpuvec.learners.args.training import TrainingArgs

ALL = "all"
"""The role of a policy that all agents share."""
ARGS: dict[str, type[TrainingArgs]] = {"ppo": ppo.Args, "a2c": a2c.Args, "ddpg": ddpg.Args}


def args_of(algorithm: str) -> type[TrainingArgs]:
    """The class of the algorithm's settings.

    Raises:
        ValueError: there is no algorithm of that name.
    """
    if algorithm not in ARGS:
        raise ValueError(f"algorithm must be one of {', '.join(ARGS)}, got {algorithm!r}.")
    return ARGS[algorithm]


def name_of(args: TrainingArgs) -> str:
    """The name of the algorithm that these are settings of."""
    return next(name for name, kind in ARGS.items() if type(args) is kind)


def named(args: TrainingArgs) -> dict[str, Any]:
    """The settings with the name of their algorithm, as files keep them."""
    return {"algorithm": name_of(args), **asdict(args)}


def args_from(settings: Mapping[str, Any]) -> TrainingArgs:
    """The settings of which `named` gave these.

    Raises:
        ValueError: there is no algorithm of that name, or a value is out of its range.
    """
    algorithm, rest = settings["algorithm"], {name: value for name, value in settings.items() if name != "algorithm"}
    return args_of(algorithm)(**rest)


def kind_of(args: TrainingArgs) -> Any:
    """The class of the policy with such settings."""
    name = name_of(args)
    return getattr(importlib.import_module(f"gpuvec.learners.{name}"), name.upper())
