"""The settings that `gpuvec train` starts from, and what `--help` says of those that are filled in later."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import tyro

from gpuvec.learners.config.setting_types import setting_types
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.config.tuned import tuned


def tuned_settings(**given: Any) -> TrainingArgs:
    """The tuned settings for what is given of env, device and algorithm, of a class whose `--help` shows the values in force.

    Parameters of the environment are left out: those that are given on the command line are merged into the tuned ones.
    """
    defaults = tuned(**given)
    kind, types = type(defaults), setting_types(type(defaults))
    hints = default_hints(defaults)
    shown: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": __name__,
        "__annotations__": {
            name: Annotated[types[name], tyro.conf.arg(help_behavior_hint=f"(default: {hint})")] for name, hint in hints.items()
        },
    }
    shown |= {name: dataclasses.field(default_factory=dict) if name == "params" else None for name in hints}
    settings: type[TrainingArgs] = dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), shown))
    values = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(kind)}
    return settings(**{**values, "params": {}})


def default_hints(defaults: TrainingArgs) -> dict[str, str]:
    """{setting: its value in force}, for settings whose own default says nothing about that."""
    hints = {"params": " ".join(f"{name} {value}" for name, value in defaults.params.items()) or "the environment's own"}
    for name in ("num_envs", "total_steps"):
        if getattr(defaults, name) is None:
            hints[name] = on_devices(defaults, name)
    meanings = {"target_return": "train to the end", "target_kl": "no limit"}
    return hints | {name: meaning for name, meaning in meanings.items() if getattr(defaults, name, 0) is None}


def on_devices(defaults: TrainingArgs, name: str) -> str:
    """What the setting becomes on the device, or on either kind if that is not known before it is looked for."""
    on_cpu, on_gpu = (getattr(defaults.resolved(device), name) for device in ("cpu", "cuda:0"))
    if defaults.device == "auto":
        return f"{on_cpu} on a CPU, {on_gpu} on a GPU" if on_cpu != on_gpu else str(on_cpu)
    return str(on_cpu if defaults.device == "cpu" else on_gpu)
