"""Checks that data from a file have the structure of a checkpoint, before anything is created from them.

Anybody may have written the file. Names, types and sizes are therefore checked here, before a setting is used, memory is
allocated or a module is imported. What depends on the environment, the shapes of its buffers and of the networks, is compared
where these are restored.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gpuvec.errors import CheckpointError
from gpuvec.learners.algorithms import args_from_dict, describes_network
from gpuvec.learners.config.training_config import MAX_COUNT, DDPGArgs, TrainingArgs
from gpuvec.learners.runs.content_checks import (
    describe,
    require_keys,
    require_mapping,
    require_network,
    require_roles,
    require_settings,
)

FORMAT = 7  # the version of the structure, increased by each change that makes older checkpoints unreadable
MAX_DEPTH = 8  # of nested mappings; a checkpoint has 5
KEYS = ("format", "args", "policies", "generators", "env", "obs", "episode_start", "iteration", "seconds")
ROLE_KEYS = ("obs", "action_mask")  # tensors, or {role: tensor} if roles have spaces of their own
# Of environments with action masks, with many agents, or with observations of a critic
OPTIONAL_KEYS = ("action_mask", "episode_continues", "critic_obs")
GENERATOR_BYTES = (5056, 16)  # the sizes of the state of torch's generator on a CPU and on a GPU


def require_checkpoint(checkpoint: object, num_shards: int = 1) -> dict[str, Any]:
    """Checks that an object has all parts of a checkpoint, of the expected types and sizes.

    Args:
        checkpoint: what the file contained.
        num_shards: the number of shards of the training, of which this is the state of one.

    Returns:
        The same object.

    Raises:
        CheckpointError: a part is missing or wrong. The message names the part, its value and what is expected.
    """
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"it contains {describe(checkpoint)}, and a checkpoint is a dict.")
    if "format" in checkpoint and checkpoint["format"] != FORMAT:
        file_format = reprlib.repr(checkpoint["format"])
        raise CheckpointError(f"it has the format {file_format}; this gpuvec reads {FORMAT}: use the version that wrote it.")
    require_keys(checkpoint, KEYS[:2], "", exact=False)
    settings = require_roles(checkpoint["args"], "args")
    for role, values in settings.items():
        require_settings(values, f"args.{role}")
    optional_keys = tuple(name for name in OPTIONAL_KEYS if name in checkpoint)
    require_keys(checkpoint, KEYS + optional_keys, "", exact=True)
    policies = require_roles(checkpoint["policies"], "policies")
    require_keys(policies, tuple(settings), "policies", exact=False)
    require_keys(require_mapping(checkpoint["generators"], "generators"), tuple(policies), "generators", exact=True)
    for role, state in checkpoint["generators"].items():
        _require_generator(state, f"generators.{role}")
    require_tensors(policies, "policies")
    require_tensors(require_mapping(checkpoint["env"], "env"), "env", allow_numbers=True)
    for name in ("obs", "episode_start", *optional_keys):
        value = checkpoint[name]
        if name in ROLE_KEYS and isinstance(value, Mapping):
            require_tensors(value, name)
        else:
            _require_tensor(value, name)
    for role in settings:
        require_network(policies[role], f"policies.{role}")
    _require_count(checkpoint["iteration"], "iteration")
    seconds = checkpoint["seconds"]
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0.0 <= seconds < math.inf:
        raise CheckpointError(f"seconds must be a number of at least 0, got {reprlib.repr(seconds)}.")
    for role, values in settings.items():
        _require_sizes(args_from_dict(values), checkpoint, f"args.{role}", policies[role], num_shards)
    return checkpoint


def require_network_size(args: TrainingArgs, network: Mapping[str, Tensor]) -> None:
    """Checks that the perceptron that the settings describe is not larger than the network in the checkpoint.

    Otherwise the settings of a small file could allocate any amount of memory. Networks that are passed as `body`, and those of
    modules that the user trusts, are not described by these settings and need no check.

    Args:
        args: the settings.
        network: {name: tensor} of the network in the checkpoint.

    Raises:
        CheckpointError: the settings describe a larger network.
    """
    if not describes_network(args):
        return
    num_needed = sum(a * b for a, b in pairwise(args.hidden)) + sum(args.hidden)
    num_weights = sum(tensor.numel() for tensor in network.values())
    if num_needed > num_weights:
        raise CheckpointError(
            f"hidden, {reprlib.repr(args.hidden)}, needs at least {num_needed:,} weights, and the network in the checkpoint "
            f"has {num_weights:,}: pass the body with which it was trained."
        )


def _require_sizes(
    args: TrainingArgs, checkpoint: Mapping[str, Any], path: str, policy: Mapping[str, Any], num_shards: int
) -> None:
    """Raises CheckpointError unless settings that determine how much memory is allocated agree with tensors in the file."""
    by_role = checkpoint["obs"]
    for obs in by_role.values() if isinstance(by_role, Mapping) else [by_role]:
        if obs.dim() < 2 or len(obs) * num_shards != args.num_envs:
            raise CheckpointError(f"{path}.num_envs is {args.num_envs}, and obs has the shape {tuple(obs.shape)}.")
    if not isinstance(args, DDPGArgs):
        return
    replay = require_mapping(policy.get("replay"), "replay")
    require_keys(replay, ("reward", "position", "size"), "replay", exact=False)
    require_tensors(replay, "replay")
    reward = replay["reward"]
    num_steps, num_rows = reward.shape if reward.dim() == 2 else (0, 0)
    if not num_steps or not num_rows or num_steps != max(args.buffer_size // (num_rows * num_shards), args.num_steps):
        raise CheckpointError(f"{path}.buffer_size is {args.buffer_size}, and the replay has the shape {tuple(reward.shape)}.")
    for name, maximum in (("position", num_steps - 1), ("size", num_steps)):
        value = replay[name]
        if value.dim() or value.dtype != torch.int64 or not 0 <= int(value) <= maximum:
            start = reprlib.repr(value.flatten()[:3].tolist())
            raise CheckpointError(f"replay.{name} must be an integer from 0 to {maximum}, got {start}.")


def _require_generator(state: object, path: str) -> None:
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.dim() != 1 or len(state) not in GENERATOR_BYTES:
        raise CheckpointError(f"{path} must be the {GENERATOR_BYTES[0]} bytes of a generator, got {describe(state)}.")
    if len(state) == GENERATOR_BYTES[0]:
        try:
            torch.Generator().set_state(state)
        except RuntimeError as error:
            raise CheckpointError(f"{path} is not the state of a generator: {_first_line(error)}") from error


def require_tensors(values: Mapping[Any, Any], path: str, depth: int = 1, allow_numbers: bool = False) -> None:
    """Checks that all leaves of nested mappings are tensors, or also numbers and lists of numbers.

    Args:
        values: what the file contained.
        path: the name of this part in the file, for messages.
        depth: of this mapping among the nested ones.
        allow_numbers: whether numbers are allowed, as in the state of an environment, which checks them itself.

    Raises:
        CheckpointError: a leaf is something else.
    """
    if depth > MAX_DEPTH:
        raise CheckpointError(f"{path[:60]}... is nested too deeply, in more than {MAX_DEPTH} mappings.")
    for name, value in values.items():
        if not isinstance(name, str):
            raise CheckpointError(f"the keys of {path} must be strings, got {reprlib.repr(name)}.")
        if isinstance(value, dict):
            require_tensors(value, f"{path}.{name}", depth + 1, allow_numbers)
        elif not (allow_numbers and all(map(_is_number, value if isinstance(value, list) else [value]))):
            _require_tensor(value, f"{path}.{name}")


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _require_tensor(value: object, path: str) -> None:
    if not isinstance(value, Tensor):
        raise CheckpointError(f"{path} must be a tensor, got {describe(value)}.")
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise CheckpointError(f"{path} must be a dense tensor, got {describe(value)}.")
    # A tensor of strides 0, which `expand` returns, would need far more memory than the file once it is copied.
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise CheckpointError(f"{path} has the shape {tuple(value.shape)}, and the file contains fewer elements.")


def _require_count(value: object, path: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise CheckpointError(f"{path} must be an integer of at least 0, got {reprlib.repr(value)}.")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
