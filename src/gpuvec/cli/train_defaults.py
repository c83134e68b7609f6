"""The settings of a training on the command line: their tuned defaults, and what `--help` says about them."""

from __future__ import annotations

import ast
import dataclasses
from typing import Annotated, Any, Literal, NamedTuple

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


class CommandSettings(NamedTuple):
    """The settings of a training on the command line.

    Attributes:
        args: those of the algorithm, with tuned values where the command line has none.
        measures_num_envs: whether the number of environments is "auto", and None in `args`.
        num_steps: that of the command line; None if it has none, so that it can be measured, too.
    """

    args: TrainingArgs
    measures_num_envs: bool
    num_steps: int | None


def tuned_settings(
    env: str = TrainingArgs.env, device: str = "auto", algorithm: str = "ppo", population: str = "0"
) -> TrainingArgs:
    """Returns the tuned settings of a command line, whose other options are parsed later.

    Args:
        env: the id of the environment.
        device: the device.
        algorithm: the name of the algorithm.
        population: the number of agents of a population; of 0 for one policy.
    """
    if algorithm == "ppo" and population.strip("+-0_"):
        return tuned_for_population(env, device)
    return tuned(env, device, algorithm)


def parser_default(defaults: TrainingArgs) -> TrainingArgs:
    """Returns the default of the parser, of a class for which `--help` shows the value that replaces a default of None.

    Its `params` are empty, because those on the command line are merged into the tuned ones, and its `num_steps` is None unless
    it is on the command line, because `--num-envs auto` then keeps it.

    Args:
        defaults: the tuned settings.
    """
    args_class, types = type(defaults), setting_types(type(defaults))
    types |= {"num_envs": int | Literal["auto"] | None, "num_steps": int | None}
    arguments = "network_args"
    types[arguments] = Annotated[types[arguments], NETWORK_ARGS_OPTION]
    fields = [
        (name, Annotated[types[name], tyro.conf.arg(help_behavior_hint=f"(default: {hint})")], dataclasses.field(default=None))
        for name, hint in default_hints(defaults).items()
    ]
    # Values are checked by `chosen_settings`.
    members = {"__doc__": args_class.__doc__, "__post_init__": lambda settings: None}
    parsed_class = dataclasses.make_dataclass(args_class.__name__, fields, bases=(args_class,), namespace=members, frozen=True)
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(args_class)}
    default: TrainingArgs = parsed_class(**{**values, "params": {}, "num_steps": None})
    return default


def chosen_settings(parsed: Any, defaults: TrainingArgs) -> CommandSettings:
    """Returns the settings of a command line.

    Args:
        parsed: those that the parser returned, of the class of `parser_default`.
        defaults: the tuned settings.

    Raises:
        ValueError: a value out of its range.
    """
    values = {field.name: getattr(parsed, field.name) for field in dataclasses.fields(defaults)}
    is_auto = parsed.num_envs == AUTO
    values["num_envs"] = None if is_auto else parsed.num_envs
    values["num_steps"] = defaults.num_steps if parsed.num_steps is None else parsed.num_steps
    args = type(defaults)(**{**values, "params": {**defaults.params, **parsed.params}})
    return CommandSettings(args, is_auto, parsed.num_steps)


def base_settings(settings: CommandSettings) -> PPOArgs:
    """Returns the settings of a command line as those that all agents of a population share.

    Raises:
        ValueError: a number of environments that is to be measured.
    """
    if settings.measures_num_envs:
        raise ValueError("--num-envs auto is for one policy: give the number of environments of an agent.")
    assert isinstance(settings.args, PPOArgs), "populations are trained by PPO"
    return settings.args


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
