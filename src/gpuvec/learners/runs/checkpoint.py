"""Checkpoints: their files, their content, and the trainings that can continue from them.

A reader finds a file complete or not at all, a run folder contains the last two, and reading a file executes nothing in it.

Anybody may have written a file. Names, types and sizes are therefore checked before a setting is used, memory is allocated or a
module is imported. What depends on the environment, the shapes of its buffers and of the networks, is compared where these are
restored.

The checkpoint of a training in several shards is that of its first shard. A list "shards" has what the others have instead:
environments, the last observations, generators, and of each policy what belongs to rows.
"""

from __future__ import annotations

import math
import re
import reprlib
import zipfile
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpuvec.errors import CheckpointError, RunWriteError, StateError
from gpuvec.learners.algorithms import algorithm_name, args_from_dict, describes_network
from gpuvec.learners.config.training_config import MAX_COUNT, DDPGArgs, TrainingArgs
from gpuvec.learners.runs.archives import archive_signature, is_stored, write_signed
from gpuvec.learners.runs.content_checks import (
    describe,
    require_keys,
    require_mapping,
    require_settings,
)
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.trusted_code import import_code

if TYPE_CHECKING:
    from gpuvec.learners.policy import Policy

CHECKPOINTS_TO_KEEP = 2
CHECKPOINT_NAME = re.compile(r"checkpoint-(\d{1,19})\.pt")
FORMAT = 7  # the version of the structure, increased by each change that makes older checkpoints unreadable
MAX_DEPTH = 8  # of nested mappings; a checkpoint has 5
KEYS = ("format", "args", "policies", "generators", "env", "obs", "episode_start", "iteration", "seconds")
ROLE_KEYS = ("obs", "action_mask")  # tensors, or {role: tensor} if roles have spaces of their own
# Of environments with action masks, with many agents, or with observations of a critic
OPTIONAL_KEYS = ("action_mask", "episode_continues", "critic_obs")
GENERATOR_BYTES = (5056, 16)  # the sizes of the state of torch's generator on a CPU and on a GPU
SHARDS = "shards"
SHARD_KEYS = ("generators", "env", "obs", "episode_start", *OPTIONAL_KEYS)
"""What a shard has in place of the first one, besides the policies."""


def save(folder_path: Path | str, checkpoint: Mapping[str, Any]) -> Path:
    """Writes checkpoint-<iteration>.pt into a folder, and removes all but the last two checkpoints from it.

    Args:
        folder_path: the path of the folder, which must exist.
        checkpoint: the checkpoint, as `Learner.state_dict` returns it.

    Returns:
        The path of the file.

    Raises:
        FileNotFoundError: there is no such folder.
        RunWriteError: the file cannot be written, for example because the disk is full. The message names the newest complete
            checkpoint.
    """
    with RunFolder(folder_path) as folder:
        return save_to_folder(folder, checkpoint)


def save_to_folder(folder: RunFolder, checkpoint: Mapping[str, Any]) -> Path:
    """Writes checkpoint-<iteration>.pt into an open run folder, and removes all but the last two checkpoints from it.

    Args:
        folder: the run folder.
        checkpoint: the checkpoint, as `Learner.state_dict` returns it.

    Returns:
        The path of the file.

    Raises:
        RunWriteError: the file cannot be written, for example because the disk is full. The message names the newest complete
            checkpoint.
    """
    name = f"checkpoint-{checkpoint['iteration']}.pt"
    try:
        with folder.open_replacement(name) as file:
            write_signed(file, partial(torch.save, dict(checkpoint)), checkpoint["args"])
    except RunWriteError as error:
        names = checkpoint_names(folder)
        remedy = f"The newest checkpoint is {folder.path / names[-1]}." if names else "There is no earlier checkpoint."
        raise RunWriteError(f"{error} {remedy}") from error
    for old_name in checkpoint_names(folder)[:-CHECKPOINTS_TO_KEEP]:
        folder.remove(old_name)
    return folder.path / name


def checkpoint_names(folder: RunFolder) -> list[str]:
    """The names of the checkpoint files in a run folder, the newest last.

    Args:
        folder: the run folder. Links and folders in it are left out.
    """
    return sort_checkpoint_names(folder.file_names())


def sort_checkpoint_names(names: Iterable[str]) -> list[str]:
    """Selects the names of checkpoint files and sorts them by iteration.

    Args:
        names: names of files. Those that do not have the form checkpoint-<iteration>.pt are left out.
    """
    numbered = [(int(match[1]), name) for name in names if (match := CHECKPOINT_NAME.fullmatch(name))]
    return [name for _, name in sorted(numbered)]


def list_checkpoints(path: Path) -> list[Path]:
    """The paths of the checkpoint files in a run folder, the newest last.

    Args:
        path: the path of the run folder.
    """
    with RunFolder(path) as folder:
        return [path / name for name in checkpoint_names(folder)]


def require_trained_policies(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Checks that all policies of a checkpoint were trained, because it does not contain the others.

    Args:
        checkpoint: the checkpoint.
        path: the path from which it was loaded, for the message.

    Raises:
        StateError: a policy was not trained.
    """
    if untrained := checkpoint["policies"].keys() - checkpoint["args"].keys():
        raise StateError(
            f"{path} contains no policy of {', '.join(sorted(untrained))}, which did not learn: resume or evaluate the run in "
            "Python, where opponents are an argument."
        )


def load(path: Path | str, trust: bool = False) -> dict[str, Any]:
    """Reads a checkpoint file, or the newest one in a run folder. A checkpoint is only data: nothing in it is executed.

    Args:
        path: the path of the file or of the run folder.
        trust: whether the modules that it names may be imported, which runs their code.

    Returns:
        The checkpoint as `Learner.state_dict` returned it, with tensors on the CPU.

    Raises:
        FileNotFoundError: there is no such file, or no checkpoint in the folder.
        CheckpointError: the file is not a checkpoint, is of another version, or is damaged. The message names the previous
            checkpoint. Or it names a module that is neither imported nor trusted.
    """
    path = Path(path)
    if path.is_dir():
        with RunFolder(path) as folder:
            return load_newest(folder, trust)
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}; give a run folder or a checkpoint-<iteration>.pt in one.")
    if not path.is_file():
        raise CheckpointError(f"{path} cannot be read as a checkpoint: it is not a regular file.")
    with path.open("rb") as file:
        return _load_file(file, path, trust)


def load_newest(folder: RunFolder, trust: bool = False) -> dict[str, Any]:
    """Reads the newest checkpoint in an open run folder.

    Args:
        folder: the run folder.
        trust: as for `load`.

    Returns:
        The checkpoint, with tensors on the CPU.

    Raises:
        FileNotFoundError: there is no checkpoint in the folder.
        CheckpointError: the file is not a checkpoint, is of another version, or is damaged. The message names the previous
            checkpoint. Or it names a module that is neither imported nor trusted.
    """
    names = sort_checkpoint_names(folder.all_names())
    if not names:
        raise FileNotFoundError(f"no checkpoint at {folder.path}; give a run folder or a checkpoint-<iteration>.pt in one.")
    path = folder.path / names[-1]
    try:
        file = folder.open(path.name)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_previous_hint(path)}") from error
    with file:
        return _load_file(file, path, trust)


def _previous_hint(path: Path) -> str:
    """A sentence that names the newest checkpoint in the same folder that is older than the one at `path`; "" without one."""
    match = CHECKPOINT_NAME.fullmatch(path.name)
    older = [p for p in list_checkpoints(path.parent) if int(p.name[11:-3]) < int(match[1])] if match else []
    return f" The previous checkpoint is {older[-1]}." if older else ""


def _load_file(file: IO[bytes], path: Path, trust: bool) -> dict[str, Any]:
    """Reads and checks the checkpoint in an open file, whose `path` is for messages."""
    hint = _previous_hint(path)
    try:
        checkpoint = load_tensors(file)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}{hint}") from error
    import_code(checkpoint.get("args") if isinstance(checkpoint, dict) else None, path, trust, archive_signature(file))
    try:
        return require_shards(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be used as a checkpoint: {error}{hint}") from error


def load_tensors(file: IO[bytes]) -> Any:
    """Reads what torch.save wrote to a file: tensors on the CPU, numbers, text and their containers. Nothing is executed.

    The file must be a zip archive: reading the older formats of torch.save executes more code.

    Args:
        file: an open file that anybody may have written.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
        if is_stored(entries, file):
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
    except zipfile.BadZipFile as error:
        raise CheckpointError("it is not a file that torch.save wrote, or it is incomplete.") from error
    except Exception as error:
        raise CheckpointError(_first_line(error)) from error
    raise CheckpointError("its content is compressed, which torch.save does not do.")


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
    settings = require_mapping(checkpoint["args"], "args", may_be_empty=False)
    for role, values in settings.items():
        require_settings(values, f"args.{role}")
    optional_keys = tuple(name for name in OPTIONAL_KEYS if name in checkpoint)
    require_keys(checkpoint, KEYS + optional_keys, "", exact=True)
    policies = require_mapping(checkpoint["policies"], "policies", may_be_empty=False)
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
        path = f"policies.{role}"
        for name, value in require_mapping(require_mapping(policies[role], path).get("network"), f"{path}.network").items():
            _require_tensor(value, f"{path}.network.{name}")
            if not value.isfinite().all():
                raise CheckpointError(f"{path}.network.{name} is not finite: training diverged before it was saved.")
    iteration = checkpoint["iteration"]
    if not isinstance(iteration, int) or isinstance(iteration, bool) or not 0 <= iteration <= MAX_COUNT:
        raise CheckpointError(f"iteration must be an integer of at least 0, got {reprlib.repr(iteration)}.")
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
        elif not allow_numbers or any(
            not isinstance(x, int | float | None) for x in (value if isinstance(value, list) else [value])
        ):
            _require_tensor(value, f"{path}.{name}")


def _require_tensor(value: object, path: str) -> None:
    if not isinstance(value, Tensor):
        raise CheckpointError(f"{path} must be a tensor, got {describe(value)}.")
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise CheckpointError(f"{path} must be a dense tensor, got {describe(value)}.")
    # A tensor of strides 0, which `expand` returns, would need far more memory than the file once it is copied.
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise CheckpointError(f"{path} has the shape {tuple(value.shape)}, and the file contains fewer elements.")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def split_state(state: Mapping[str, Any], shared: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Returns the part of a shard's state that other shards of the training do not have.

    Args:
        state: the state, as `Learner.state_dict` returns it.
        shared: {role: the names of what the shards share}.
    """
    policies = {
        role: {name: value for name, value in state["policies"][role].items() if name not in names}
        for role, names in shared.items()
    }
    return {"policies": policies, **{name: state[name] for name in SHARD_KEYS if name in state}}


def state_of_shard(checkpoint: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Returns the state of a shard, as `Learner.state_dict` returns it.

    Args:
        checkpoint: the checkpoint.
        index: the number of the shard.
    """
    state = {name: value for name, value in checkpoint.items() if name != SHARDS}
    if index == 0:
        return state
    part = checkpoint[SHARDS][index - 1]
    policies = {role: {**values, **part["policies"].get(role, {})} for role, values in checkpoint["policies"].items()}
    return {**state, **part, "policies": policies}


def require_shards(checkpoint: object) -> dict[str, Any]:
    """Checks that an object has all parts of a checkpoint, for each of its shards.

    Args:
        checkpoint: what the file contained.

    Returns:
        The same object.

    Raises:
        CheckpointError: a part is missing or wrong. The message names the part, its value and what is expected.
    """
    if not isinstance(checkpoint, dict) or SHARDS not in checkpoint:
        return require_checkpoint(checkpoint)
    shards = checkpoint[SHARDS]
    if not isinstance(shards, list) or not shards:
        raise CheckpointError(f"{SHARDS} must be a list of states, got {describe(shards)}.")
    num_shards = 1 + len(shards)
    require_checkpoint(state_of_shard(checkpoint, 0), num_shards)
    optional_keys = tuple(name for name in OPTIONAL_KEYS if name in checkpoint)
    expected = "policies", *(name for name in SHARD_KEYS if name not in OPTIONAL_KEYS), *optional_keys
    for k, part in enumerate(shards):
        path = f"{SHARDS}[{k}]"
        require_keys(require_mapping(part, path), expected, path, exact=True)
        for role, values in require_mapping(part["policies"], f"{path}.policies").items():
            require_mapping(values, f"{path}.policies.{role}")
        try:
            require_checkpoint(state_of_shard(checkpoint, k + 1), num_shards)
        except CheckpointError as error:
            raise CheckpointError(f"in {path}, {error}") from error
    return checkpoint


def learning_policies(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """Returns {role: policy} of the policies that learn.

    Args:
        policies: {role: policy}.
    """
    return {role: policy for role, policy in policies.items() if policy.stages}


def require_same_shards(checkpoint: Mapping[str, Any], count: int) -> None:
    """Checks that `checkpoint` has as many shards as a training.

    Args:
        checkpoint: as `Learner.state_dict` returned it.
        count: the number of shards of the training.

    Raises:
        StateError: it has more or fewer.
    """
    num_shards = 1 + len(checkpoint.get(SHARDS, ()))
    if num_shards != count:
        raise StateError(f"this checkpoint has {num_shards} shards, and this training {count}: continue with {num_shards}.")


def require_same_policies(checkpoint: Mapping[str, Any], policies: Mapping[str, Policy]) -> None:
    """Checks that the policies of a checkpoint are those of a training.

    Args:
        checkpoint: as `Learner.state_dict` returned it.
        policies: {role: policy} of the training.

    Raises:
        StateError: other roles, algorithms, environments or devices.
    """
    if checkpoint["policies"].keys() != policies.keys():
        theirs, ours = ", ".join(checkpoint["policies"]), ", ".join(policies)
        raise StateError(f"this checkpoint has policies for {theirs}, and this training for {ours}.")
    learning = learning_policies(policies)
    if checkpoint["args"].keys() != learning.keys():
        theirs, ours = ", ".join(checkpoint["args"]), ", ".join(learning)
        raise StateError(f"in this checkpoint {theirs} learned, and in this training {ours} would.")
    for role, policy in learning.items():
        args, saved = policy.args, checkpoint["args"][role]
        if saved["algorithm"] != algorithm_name(args):
            raise StateError(f"this checkpoint is of {saved['algorithm']}; it cannot continue with {algorithm_name(args)}.")
        if saved["env"] != args.env:
            raise StateError(f"this checkpoint is of {saved['env']}; it cannot continue in {args.env}.")
        if checkpoint["generators"][role].shape != policy.generator.get_state().shape:
            raise StateError(f"this checkpoint was written on {saved['device']}; it cannot continue on {args.device}.")
