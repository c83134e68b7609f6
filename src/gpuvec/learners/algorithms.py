"""The registry of algorithms, the only list of them. Importing this module imports no torch.

An algorithm is a module with a subclass of `policy.Policy`, and a module in `config` with a subclass of `TrainingArgs`. The
command line, the tuned settings and the checks of checkpoints use this registry.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields
from typing import Any, NamedTuple

from gpuvec.learners.config.a2c_config import A2CArgs
from gpuvec.learners.config.ddpg_config import DDPGArgs, TD3Args
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.config.training_config import TrainingArgs


class Algorithm(NamedTuple):
    """An entry of the registry."""

    args_class: type[TrainingArgs]
    """The class of its settings."""
    policy_class: str
    """The class of its policies as "module:class". It needs torch, and is imported when a training needs it."""
    policy_factory: str | None = None
    """The function that makes its policies as "module:function"; None for the class."""


ALGORITHMS = {
    "ppo": Algorithm(PPOArgs, "gpuvec.learners.ppo:PPO", "gpuvec.learners.fused_ppo.select_path:make_ppo"),
    "a2c": Algorithm(A2CArgs, "gpuvec.learners.a2c:A2C"),
    "ddpg": Algorithm(DDPGArgs, "gpuvec.learners.ddpg:DDPG"),
    "td3": Algorithm(TD3Args, "gpuvec.learners.ddpg:DDPG"),
}
"""{name on the command line and in files: algorithm}."""
ALL = "all"
"""The role of a policy that all agents share."""


def args_class(algorithm: str) -> type[TrainingArgs]:
    """Returns the class of the settings of `algorithm`.

    Raises:
        ValueError: there is no algorithm of that name.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}.")
    return ALGORITHMS[algorithm].args_class


def algorithm_name(args: TrainingArgs) -> str:
    """Returns the name of the algorithm that `args` are settings of, whose class may be a subclass of a user.

    Raises:
        TypeError: settings of no algorithm.
    """
    names = {algorithm.args_class: name for name, algorithm in ALGORITHMS.items()}
    for base in type(args).__mro__:  # the class itself first, since settings of TD3 are settings of DDPG too
        if base in names:
            return names[base]
    allowed = ", ".join(algorithm.args_class.__name__ for algorithm in ALGORITHMS.values())
    raise TypeError(f"{type(args).__name__} are settings of no algorithm; allowed are {allowed} and their subclasses.")


def args_to_dict(args: TrainingArgs) -> dict[str, Any]:
    """Returns the settings `args` and, as "algorithm", the name of their algorithm, as files store them.

    Fields that a subclass of a user adds are no settings of the algorithm.
    """
    name = algorithm_name(args)
    values = {field.name: getattr(args, field.name) for field in fields(ALGORITHMS[name].args_class)}
    return {"algorithm": name, **deepcopy(values)}


def args_from_dict(values: Mapping[str, Any]) -> TrainingArgs:
    """Returns the settings that `args_to_dict` turned into `values`.

    Raises:
        ValueError: there is no algorithm of that name, or a value is out of its range.
    """
    settings = {name: value for name, value in values.items() if name != "algorithm"}
    return args_class(values["algorithm"])(**settings)


def args_from_json(values: Mapping[str, Any]) -> TrainingArgs:
    """Returns the settings that `args_to_dict` turned into `values`, which JSON contained: it has lists in place of tuples.

    Raises:
        ValueError: there is no algorithm of that name, or a value is out of its range.
    """
    return args_from_dict({name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def policy_class(args: TrainingArgs) -> Any:
    """Imports and returns the class of the policies that learn with the settings `args`."""
    return _import_object(ALGORITHMS[algorithm_name(args)].policy_class)


def policy_factory(args: TrainingArgs) -> Any:
    """Imports and returns `make(args, context, network)`, which makes the policies that learn with the settings `args`."""
    algorithm = ALGORITHMS[algorithm_name(args)]
    return _import_object(algorithm.policy_factory or algorithm.policy_class)


def _import_object(path: str) -> Any:
    """Imports and returns the object at `path`, "module:name"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
