"""Networks of users that settings and files name, as "module:Class" with arguments.

A class is looked up here, and never imported: `trusted_code` decides whether its module is.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
from torch import nn

from gpuvec.errors import GpuvecError, StateError
from gpuvec.learners.algorithms import ALL, policy_class
from gpuvec.learners.config.setting_types import is_finite, matches_type, setting_types
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.runs.trusted_code import require_imported

A = TypeVar("A", bound=TrainingArgs)


def with_network_name(args: A, body: Body) -> A:
    """Returns settings with the name and the arguments of the class that makes the network.

    A function, or an object without a name, gets a name that leads to no class, so that a reader of a file asks for the body.

    Args:
        args: the settings.
        body: a class, a `functools.partial` of one with keywords, or another function.

    Raises:
        ValueError: the settings name another network.
    """
    cls, arguments, has_positional = body, {}, False
    if isinstance(body, partial):
        cls, arguments, has_positional = body.func, body.keywords, bool(body.args)
    owner = cls if hasattr(cls, "__qualname__") else type(cls)
    name = f"{owner.__module__}:{owner.__qualname__}"
    hint = setting_types(TrainingArgs)["network_args"]
    is_data = matches_type(dict(arguments), hint) and all(map(is_finite, arguments.values()))
    if not is_data or has_positional:
        name, arguments = f"{name}(...)", {}
    if args.network is not None and (args.network, args.network_args) != (name, arguments):
        raise ValueError(f"network={args.network!r}, and body is {name}: give one of them.")
    return replace(args, network=name, network_args=dict(arguments))


def make_network(
    args: TrainingArgs,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    body: Body | None = None,
    role: str = ALL,
    critic_space: gym.Space[Any] | None = None,
) -> Any:
    """Returns the network of a role's policy with its initial weights: of `body`, of the class in the settings, or the default.

    Args:
        args: the settings.
        observation_space, action_space, critic_space: of one agent, as `make_network` of its policy class takes them.
        body: the function that makes the network; None for that of the settings.
        role: the initial weights depend on it.

    Raises:
        CheckpointError: the module of the class in the settings is not imported.
        StateError: there is no such class.
        ValueError, TypeError: the network does not fit the spaces.
    """
    make = policy_class(args).make_network
    if body is not None or args.network is None:
        return make(args, observation_space, action_space, body, role, critic_space)
    cls = find_network(args.network)
    try:
        return make(args, observation_space, action_space, partial(cls, **args.network_args), role, critic_space)
    except (GpuvecError, ValueError, MemoryError):
        raise
    except Exception as error:
        arguments = "".join(f", {name}={value!r}" for name, value in args.network_args.items())
        raise ValueError(
            f"the network {args.network} cannot be used: {cls.__name__}(observation_space, action_space{arguments}) and its "
            f"methods must fit {observation_space} and {action_space}, and {type(error).__name__} was raised: {error}"
        ) from error


def find_network(name: str) -> type[nn.Module]:
    """Returns the class that settings name, from a module that is imported. Nothing is imported.

    Args:
        name: "module:Class", which may be from a file.

    Raises:
        CheckpointError: the module is not imported.
        StateError: the module has no such class, or it is not one of networks.
    """
    require_imported({ALL: {"network": name}})
    module, _, qualname = name.rpartition(":")
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):  # `getattr` would run the `__getattr__` of a module, which may import others
        value = getattr(value, "__dict__", {}).get(part)
    # A file must not call any function of a module that happens to be imported.
    if not isinstance(value, type) or not issubclass(value, nn.Module):
        raise StateError(
            f"the network {name} is not a class of torch.nn.Module with that name in the module {module}. If it is "
            "a function, or a class of a script, a notebook or a function, give it in Python: load_policy(..., body=...) reads "
            "a run, and train(..., body=..., run_folder=...) continues it. For the command line, move the class to a module of "
            "its own and train with it."
        )
    return value
