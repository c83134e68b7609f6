"""The registry of algorithms, the only list of them. Importing this module imports no torch.

An algorithm is a subclass of `policy.Policy` with a subclass of `TrainingArgs`. PPO, A2C, DDPG and TD3 register here as an
algorithm of a user does. The command line, the checkpoints, the tuned settings and the tests of all algorithms use this
registry.
"""

from __future__ import annotations

import importlib
import reprlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from gpuvec.learners.config.setting_types import (
    describe_type,
    is_finite,
    is_setting_type,
    matches_type,
    setting_types,
    with_tuples,
)
from gpuvec.learners.config.training_config import PACKAGE, A2CArgs, DDPGArgs, PPOArgs, TD3Args, TrainingArgs


class Algorithm(NamedTuple):
    """An entry of the registry."""

    args_class: type[TrainingArgs]
    """The class of its settings."""
    policy_class: str | type[Any]
    """The class of its policies, or "module:class", which is imported when a training needs it, since it needs torch."""
    policy_factory: str | None = None
    """The function that makes its policies as "module:function"; None for the class."""


ALGORITHMS: dict[str, Algorithm] = {}
"""{name on the command line and in files: algorithm}. Names of algorithms of users begin with their module, "module:name"."""
ALL = "all"
"""The role of a policy that all agents share."""


def register_algorithm(
    name: str, args_class: type[TrainingArgs], policy_class: str | type[Any], policy_factory: str | None = None
) -> str:
    """Registers an algorithm, and returns its name on the command line and in files.

    That of an algorithm of your own is "module:name", with the module that defines `args_class`, so that a reader of a file
    knows what to import. The module registers it when it is imported; registered again, it replaces the algorithm.

    Args:
        name: a Python identifier.
        args_class: the class of its settings, a frozen dataclass. Its fields are numbers, text, None, and tuples and dicts of
            these, since files store them, and become the options of the command line.
        policy_class: a subclass of `policy.Policy` with a static method `make_network`, or "module:class".
        policy_factory: a function `make(args, context, network)` as "module:function"; None for the class.

    Raises:
        ValueError: a name or a class that does not fit.
        TypeError: `args_class` is not such a dataclass.
    """
    if not name.isidentifier():
        raise ValueError(f"the name of an algorithm must be a Python identifier, got {name!r}.")
    if not (isinstance(args_class, type) and issubclass(args_class, TrainingArgs) and is_dataclass(args_class)):
        raise TypeError(
            f"the settings of {name} must be a frozen dataclass that inherits from TrainingArgs, got {args_class!r}."
        )
    if "__dataclass_fields__" not in vars(args_class):
        raise TypeError(
            f"{args_class.__name__}, the settings of {name}, must be a dataclass itself: write @dataclass(frozen=True)."
        )
    module, policy_module = args_class.__module__, getattr(policy_class, "__module__", policy_class)
    full_name = name if module.startswith(f"{PACKAGE}.") else f"{module}:{name}"
    others = [other for other, algorithm in ALGORITHMS.items() if algorithm.args_class is args_class and other != full_name]
    if others or (full_name == name and not policy_module.startswith(f"{PACKAGE}.")):
        owner = others[0] if others else PACKAGE
        raise ValueError(f"{args_class.__name__} are the settings of {owner}: give {name} a subclass of its own.")
    for field, hint in setting_types(args_class).items():
        if not is_setting_type(hint):
            raise TypeError(
                f"{field} of {args_class.__name__} is {hint}; a setting is a number, text, None, or a tuple or dict of these."
            )
    ALGORITHMS[full_name] = Algorithm(args_class, policy_class, policy_factory)
    return full_name


register_algorithm("ppo", PPOArgs, "gpuvec.learners.ppo:PPO", "gpuvec.learners.fused_ppo.select_path:make_ppo")
register_algorithm("a2c", A2CArgs, "gpuvec.learners.a2c:A2C")
register_algorithm("ddpg", DDPGArgs, "gpuvec.learners.ddpg:DDPG")
register_algorithm("td3", TD3Args, "gpuvec.learners.ddpg:DDPG")


def args_class(algorithm: str) -> type[TrainingArgs]:
    """Returns the class of the settings of `algorithm`.

    Raises:
        ValueError: there is no algorithm of that name.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"algorithm must be one of {', '.join(ALGORITHMS)}, got {reprlib.repr(algorithm)}. One that a module of yours "
            "registers is named module:name."
        )
    return ALGORITHMS[algorithm].args_class


def algorithm_name(args: TrainingArgs) -> str:
    """Returns the name of the algorithm that `args` are settings of, whose class may be a subclass of a user.

    Raises:
        TypeError: settings of no algorithm.
    """
    names = {algorithm.args_class: name for name, algorithm in ALGORITHMS.items()}
    for cls in type(args).__mro__:
        if cls in names:
            return names[cls]
    allowed = ", ".join(algorithm.args_class.__name__ for algorithm in ALGORITHMS.values())
    raise TypeError(f"{type(args).__name__} are settings of no algorithm; allowed are {allowed} and their subclasses.")


def describes_network(args: TrainingArgs) -> bool:
    """Returns whether settings describe the network as those of gpuvec do, by `hidden` and others, and no class does.

    Args:
        args: the settings.
    """
    return args.network is None and ":" not in algorithm_name(args)


def args_to_dict(args: TrainingArgs) -> dict[str, Any]:
    """Returns the settings `args` and, as "algorithm", the name of their algorithm, as files store them.

    Fields that a subclass of a user adds are no settings of the algorithm, unless the subclass is registered as another one.

    Raises:
        ValueError: a field of such a class has a value of another type.
    """
    name = algorithm_name(args)
    values = {field.name: getattr(args, field.name) for field in fields(ALGORITHMS[name].args_class)}
    _require_types(ALGORITHMS[name].args_class, values)
    return {"algorithm": name, **deepcopy(values)}


def args_from_dict(values: Mapping[str, Any]) -> TrainingArgs:
    """Returns the settings that `args_to_dict` turned into `values`.

    Raises:
        ValueError: there is no algorithm of that name, or a value is out of its range.
    """
    settings = {name: value for name, value in values.items() if name != "algorithm"}
    cls = args_class(values["algorithm"])
    _require_types(cls, settings)
    return cls(**settings)


def _require_types(cls: type[TrainingArgs], values: Mapping[str, Any]) -> None:
    """Raises ValueError unless values are of the types of the fields of `cls`, which only gpuvec's classes check themselves."""
    for name, hint in setting_types(cls).items():
        if name in values and not (matches_type(values[name], hint) and is_finite(values[name])):
            raise ValueError(f"{name} must be {describe_type(hint)}, finite in 32 bits, got {reprlib.repr(values[name])}.")


def args_from_json(values: Mapping[str, Any]) -> TrainingArgs:
    """Returns the settings that `args_to_dict` turned into `values`, which JSON contained: it has lists in place of tuples.

    Raises:
        ValueError: there is no algorithm of that name, or a value is out of its range.
    """
    return args_from_dict(with_tuples(dict(values)))


def policy_class(args: TrainingArgs) -> Any:
    """Imports and returns the class of the policies that learn with the settings `args`."""
    return _import_object(ALGORITHMS[algorithm_name(args)].policy_class)


def policy_factory(args: TrainingArgs) -> Any:
    """Imports and returns `make(args, context, network)`, which makes the policies that learn with the settings `args`."""
    algorithm = ALGORITHMS[algorithm_name(args)]
    return _import_object(algorithm.policy_factory or algorithm.policy_class)


def _import_object(path: str | type[Any]) -> Any:
    """Imports and returns the object at `path`, "module:name", or the class itself."""
    if isinstance(path, type):
        return path
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
