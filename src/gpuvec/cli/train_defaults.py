"""The default settings of `gpuvec train`, and what `--help` says about defaults that depend on the device."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import tyro

from gpuvec.learners.config.setting_types import setting_types
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.population.population_args import NUM_ENVS


def tuned_settings(**options: Any) -> TrainingArgs:
    """Returns tuned settings, of a class for which `--help` shows the value that replaces a default of None.

    Its `params` are empty, because those on the command line are merged into the tuned ones.

    Args:
        options: `env`, `device`, `algorithm` and `population`, as far as they are on the command line.
    """
    is_population = options.pop("population", None) is not None
    defaults = tuned(**options)
    if is_population:  # the number of environments is that of one agent
        defaults = dataclasses.replace(defaults, num_envs=NUM_ENVS)
    args_class, types = type(defaults), setting_types(type(defaults))
    hints = default_hints(defaults)
    members: dict[str, Any] = {
        "__doc__": args_class.__doc__,
        "__module__": __name__,
        "__annotations__": {
            name: Annotated[types[name], tyro.conf.arg(help_behavior_hint=f"(default: {hint})")] for name, hint in hints.items()
        },
    }
    members |= {name: dataclasses.field(default_factory=dict) if name == "params" else None for name in hints}
    class_with_hints: type[TrainingArgs] = dataclasses.dataclass(frozen=True)(type(args_class.__name__, (args_class,), members))
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(args_class)}
    return class_with_hints(**{**values, "params": {}})


def default_hints(defaults: TrainingArgs) -> dict[str, str]:
    """Describes the values of settings whose default does not show them.

    Args:
        defaults: the default settings.

    Returns:
        {setting: text}.
    """
    hints = {"params": " ".join(f"{name} {value}" for name, value in defaults.params.items()) or "the environment's own"}
    for name in ("num_envs", "total_steps"):
        if getattr(defaults, name) is None:
            hints[name] = resolved_default(defaults, name)
    meanings = {"target_return": "train to the end", "target_kl": "no limit"}
    return hints | {name: meaning for name, meaning in meanings.items() if getattr(defaults, name, 0) is None}


def resolved_default(defaults: TrainingArgs, name: str) -> str:
    """The value of a setting on the device, or on a CPU and on a GPU if the device is "auto".

    Args:
        defaults: the default settings.
        name: the name of a setting whose value depends on the device.
    """
    on_cpu, on_gpu = (getattr(defaults.resolved(device), name) for device in ("cpu", "cuda:0"))
    if defaults.device == "auto":
        return f"{on_cpu} on a CPU, {on_gpu} on a GPU" if on_cpu != on_gpu else str(on_cpu)
    return str(on_cpu if defaults.device == "cpu" else on_gpu)
