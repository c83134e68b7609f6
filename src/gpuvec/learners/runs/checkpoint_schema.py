"""What a checkpoint must look like before anything is made of it: the one check of data that came from a file.

A file is data that anybody may have written. So each name, type and size is looked at here, before a setting is believed,
memory is allocated or a module is imported. What depends on the environment, the shapes of its buffers and of the networks, is
compared where they are restored.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gpuvec.errors import CheckpointError
from gpuvec.learners.algorithms import ALGORITHMS, args_from_dict
from gpuvec.learners.config.setting_types import setting_types
from gpuvec.learners.config.training_config import MAX_COUNT, TrainingArgs

FORMAT = 4  # of checkpoints; another number for each change that leaves older ones unreadable
MAX_DEPTH = 8  # of nested mappings; a checkpoint has 5
KEYS = ("format", "args", "policies", "generators", "env", "obs", "episode_start", "iteration", "seconds", "next_confirmation")
GENERATOR_BYTES = (5056, 16)  # of the state of torch's generator on a CPU and on a GPU


def require_checkpoint(checkpoint: object) -> dict[str, Any]:
    """The checkpoint, if it has all parts of one.

    Raises:
        CheckpointError: the message says what part is wrong, what was found and what is expected.
    """
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"it holds {_named(checkpoint)}, where a checkpoint is a dict.")
    if "format" in checkpoint and checkpoint["format"] != FORMAT:
        found = reprlib.repr(checkpoint["format"])
        raise CheckpointError(f"it has the format {found}; this gpuvec reads {FORMAT}: use the version that wrote it.")
    _require_keys(checkpoint, KEYS[:2], "", exact=False)
    settings = _roles(checkpoint["args"], "args")
    for role, values in settings.items():
        _require_settings(values, f"args.{role}")
    _require_keys(checkpoint, KEYS, "", exact=True)
    policies = _roles(checkpoint["policies"], "policies")
    _require_keys(policies, tuple(settings), "policies", exact=False)
    _require_keys(_mapping(checkpoint["generators"], "generators"), tuple(policies), "generators", exact=True)
    for role, state in checkpoint["generators"].items():
        _require_generator(state, f"generators.{role}")
    _require_tensors(policies, "policies")
    _require_tensors(_mapping(checkpoint["env"], "env"), "env", allow_numbers=True)
    for name in ("obs", "episode_start"):
        _require_tensor(checkpoint[name], name)
    for role in settings:
        _require_learned(policies[role], f"policies.{role}")
    for name in ("iteration", "next_confirmation"):
        _require_count(checkpoint[name], name)
    seconds = checkpoint["seconds"]
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0.0 <= seconds < math.inf:
        raise CheckpointError(f"seconds must be a number of at least 0, got {reprlib.repr(seconds)}.")
    for role, values in settings.items():
        _require_sizes(args_from_dict(values), checkpoint, f"args.{role}", policies[role])
    return checkpoint


def require_network_size(args: TrainingArgs, network: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError if a perceptron of these settings has more weights than the network in the checkpoint.

    For networks that the settings describe, and not for a body of one's own.
    """
    needed, held = sum(a * b for a, b in pairwise(args.hidden)) + sum(args.hidden), sum(x.numel() for x in network.values())
    if needed > held:
        raise CheckpointError(
            f"hidden, {reprlib.repr(args.hidden)}, needs {needed:,} weights and more, and the network in the checkpoint has "
            f"{held:,}: give the body that it was trained with."
        )


def require_trusted(env: str) -> None:
    """Raises CheckpointError if the id `env` of a checkpoint, "module:id", names a module that is not imported yet."""
    module, _, id = env.rpartition(":")
    if module and module not in sys.modules:
        raise CheckpointError(
            f"the checkpoint is of {id} in the module {module!r}, which is not imported, and importing it runs its code. If "
            f"you trust it, give --trust, or in Python `import {module}` before."
        )


def _require_settings(values: object, path: str) -> None:
    settings = _mapping(values, path)
    algorithm = settings.get("algorithm")
    if "algorithm" not in settings:
        raise CheckpointError(f"{path} lacks algorithm.")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise CheckpointError(f"it is a checkpoint of {reprlib.repr(algorithm)}; this version has {', '.join(ALGORITHMS)}.")
    _require_keys(settings, ("algorithm", *setting_types(ALGORITHMS[algorithm].args_class)), path, exact=True)
    try:
        args_from_dict(settings)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be met: {error}") from error


def _require_learned(policy: Any, path: str) -> None:
    """A policy that learned has a network, whose numbers are finite."""
    network = _mapping(_mapping(policy, path).get("network"), f"{path}.network")
    for name, value in network.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{path}.network.{name} must be a tensor, got {_named(value)}.")
        if not value.isfinite().all():
            raise CheckpointError(f"{path}.network.{name} is not finite: training went wrong before it was saved.")


def _require_sizes(args: TrainingArgs, checkpoint: Mapping[str, Any], path: str, policy: Mapping[str, Any]) -> None:
    """The settings from which memory is allocated are those of the tensors in the file."""
    obs = checkpoint["obs"]
    if obs.dim() < 2 or len(obs) != args.num_envs:
        raise CheckpointError(f"{path}.num_envs is {args.num_envs}, and obs has the shape {tuple(obs.shape)}.")
    if "replay" not in policy:
        return
    replay = _mapping(policy["replay"], "replay")
    _require_keys(replay, ("reward", "position", "size"), "replay", exact=False)
    _require_tensors(replay, "replay")
    reward = replay["reward"]
    slots, rows = reward.shape if reward.dim() == 2 else (0, 0)
    capacity = getattr(args, "buffer_size", 0)
    if not slots or not rows or slots != max(capacity // rows, args.num_steps):
        raise CheckpointError(f"{path}.buffer_size is {capacity}, and the replay has the shape {tuple(reward.shape)}.")
    for name, highest in (("position", slots - 1), ("size", slots)):
        value = replay[name]
        if value.dim() or value.dtype != torch.int64 or not 0 <= int(value) <= highest:
            found = reprlib.repr(value.flatten()[:3].tolist())
            raise CheckpointError(f"replay.{name} must be an integer from 0 to {highest}, got {found}.")


def _require_generator(state: object, path: str) -> None:
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.dim() != 1 or len(state) not in GENERATOR_BYTES:
        raise CheckpointError(f"{path} must be the {GENERATOR_BYTES[0]} bytes of a generator, got {_named(state)}.")
    if len(state) == GENERATOR_BYTES[0]:
        try:
            torch.Generator().set_state(state)
        except RuntimeError as error:
            raise CheckpointError(f"{path} is no state of a generator: {_first_line(error)}") from error


def _require_tensors(values: Mapping[Any, Any], path: str, depth: int = 1, allow_numbers: bool = False) -> None:
    """All that is nested in `values` are tensors, or also numbers: an environment looks at its own."""
    if depth > MAX_DEPTH:
        raise CheckpointError(f"{path[:60]}... is nested too deep, beyond {MAX_DEPTH} mappings.")
    for name, value in values.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{path} must have names that are text, got {reprlib.repr(name)}.")
        if isinstance(value, dict):
            _require_tensors(value, f"{path}.{name}", depth + 1, allow_numbers)
        elif not (allow_numbers and all(map(_is_number, value if isinstance(value, list) else [value]))):
            _require_tensor(value, f"{path}.{name}")


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _require_tensor(value: object, path: str) -> None:
    if not isinstance(value, Tensor):
        raise CheckpointError(f"{path} must be a tensor, got {_named(value)}.")
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise CheckpointError(f"{path} must be a dense tensor, got {_named(value)}.")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise CheckpointError(f"{path} has the shape {tuple(value.shape)}, for which the file does not hold the numbers.")


def _require_count(value: object, path: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise CheckpointError(f"{path} must be an integer of at least 0, got {reprlib.repr(value)}.")


def _roles(value: object, path: str) -> Mapping[str, Any]:
    """A mapping that is not empty, by names of roles."""
    found = _mapping(value, path)
    if not found:
        raise CheckpointError(f"{path} is empty.")
    return found


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise CheckpointError(f"{path} must be a dict by names, got {_named(value)}.")
    return value


def _require_keys(found: Mapping[Any, Any], expected: tuple[str, ...], path: str, exact: bool) -> None:
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected] if exact else []
    if missing or extra:
        problems = [f"lacks {', '.join(missing)}"] if missing else []
        problems += [f"has {reprlib.repr(extra)}, which is not known"] if extra else []
        raise CheckpointError(f"{path or 'it'} {' and '.join(problems)}.")


def _named(value: object) -> str:
    """What is found in place of something else."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}, {str(value.layout).removeprefix('torch.')}, with shape {tuple(value.shape)}"
    return f"{type(value).__name__} {reprlib.repr(value)}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
