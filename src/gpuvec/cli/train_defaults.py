"""The default settings of `gpuvec train`, and what `--help` says about defaults that depend on the device."""

from __future__ import annotations

import ast
import dataclasses
from typing import Annotated, Any, Literal

import tyro

from gpuvec.learners.config.setting_types import setting_types
from gpuvec.learners.config.training_config import PPOArgs, TrainingArgs
from gpuvec.learners.config.tuned import tuned, tuned_for_population

OPTION_DICTS = ("params", "evaluate_params", "network_args")  # settings that are {name: value}
AUTO = "auto"
"""In place of the number of environments: measure which number makes most steps per second."""


def parse_network_args(words: list[str]) -> dict[str, Any]:
    """Returns the arguments of a network on a command line.

    Args:
        words: such as "width=128", "sizes=64,64", "layer_norm=True" and "activation=relu".

    Raises:
        ValueError: a word has another form.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"an argument of the network has the form name=value, such as width=128, got {word!r}.")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        arguments[name] = value if isinstance(value, bool | int | float | tuple) else text
    return arguments


NETWORK_ARGS_OPTION = tyro.constructors.PrimitiveConstructorSpec[dict[str, Any]](
    nargs="*",
    metavar="NAME=VALUE ...",
    instance_from_str=parse_network_args,
    is_instance=lambda value: isinstance(value, dict),
    str_from_instance=lambda value: [f"{name}={each}" for name, each in value.items()],
)


def tuned_settings(**options: Any) -> TrainingArgs:
    """Returns tuned settings, of a class for which `--help` shows the value that replaces a default of None.

    Its `params` are empty, because those on the command line are merged into the tuned ones, and its `num_steps` is None unless
    it is on the command line, because `--num-envs auto` then keeps it. `chosen_settings` has the values in place of these.

    Args:
        options: `env`, `device`, `algorithm` and `population`, as far as they are on the command line.
    """
    if options.pop("population", None) is not None and options.get("algorithm", "ppo") == "ppo":
        defaults: TrainingArgs = tuned_for_population(**{name: options[name] for name in options if name != "algorithm"})
    else:
        defaults = tuned(**options)
    args_class, types = type(defaults), setting_types(type(defaults))
    hints = default_hints(defaults)
    types |= {"num_envs": int | Literal["auto"] | None, "num_steps": int | None}
    arguments = "network_args"
    types[arguments] = Annotated[types[arguments], NETWORK_ARGS_OPTION]
    members: dict[str, Any] = {
        "__doc__": args_class.__doc__,
        "__module__": __name__,
        "__annotations__": {
            name: Annotated[types[name], tyro.conf.arg(help_behavior_hint=f"(default: {hint})")] for name, hint in hints.items()
        },
        # Checks values as soon as they are parsed; the result is made again where it is used.
        "__post_init__": lambda settings: chosen_settings(settings, args_class, defaults) and None,
    }
    members |= {name: dataclasses.field(default_factory=dict) if name in OPTION_DICTS else None for name in hints}
    class_with_hints: type[TrainingArgs] = dataclasses.dataclass(frozen=True)(type(args_class.__name__, (args_class,), members))
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(args_class)}
    return class_with_hints(**{**values, "params": {}, "num_steps": None})


def chosen_settings(settings: TrainingArgs, args_class: type[TrainingArgs], defaults: TrainingArgs) -> TrainingArgs:
    """Returns the settings of a command line as those of an algorithm.

    Args:
        defaults: the tuned settings.

    Raises:
        ValueError: a value out of its range.
    """
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(args_class)}
    if is_autoscaled(settings):
        values["num_envs"] = None
    if values["num_steps"] is None:
        values["num_steps"] = defaults.num_steps
    return args_class(**{**values, "params": {**defaults.params, **settings.params}})


def is_autoscaled(settings: Any) -> bool:
    """Whether the number of environments on the command line is "auto"."""
    return settings.num_envs == AUTO  # type: ignore[no-any-return]  # the class with hints has other types


def base_settings(settings: TrainingArgs) -> PPOArgs:
    """Returns the settings of a command line as those that all agents of a population share.

    Raises:
        ValueError: a value out of its range, or a number of environments that is to be measured.
    """
    if is_autoscaled(settings):
        raise ValueError("--num-envs auto is for one policy: give the number of environments of an agent.")
    base = chosen_settings(settings, PPOArgs, tuned_for_population(settings.env, settings.device))
    assert isinstance(base, PPOArgs), "the class that was asked for"
    return base


def default_hints(defaults: TrainingArgs) -> dict[str, str]:
    """Describes the values of settings whose default does not show them: on a CPU and on a GPU, if the device is "auto".

    Returns:
        {setting: text}.
    """
    hints = {
        name: " ".join(f"{key} {value}" for key, value in getattr(defaults, name).items()) or "the environment's own"
        for name in OPTION_DICTS
    }
    hints["network_args"] = "those of the class"
    for name in ("num_envs", "total_steps"):
        on_cpu, on_gpu = (getattr(defaults.resolved(device), name) for device in ("cpu", "cuda:0"))
        if defaults.device == "auto" and on_cpu != on_gpu:
            hints[name] = f"{on_cpu} on a CPU, {on_gpu} on a GPU"
        elif name == "num_envs" or getattr(defaults, name) is None:
            hints[name] = str(on_cpu if defaults.device in ("auto", "cpu") else on_gpu)
    hints["num_steps"] = f"{defaults.num_steps}; with --num-envs auto it is measured"
    meanings = {"target_return": "train to the end", "target_kl": "no limit", "evaluate_every": "never", "network": "none"}
    return hints | {name: meaning for name, meaning in meanings.items() if getattr(defaults, name, 0) is None}
