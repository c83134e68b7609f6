"""Writes and reads checkpoint files.

A reader finds a file complete or not at all, a run folder contains the last two, and reading a file executes nothing in it.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from gpuvec.errors import CheckpointError, RunWriteError, StateError
from gpuvec.learners.runs.checkpoint_shards import require_shards
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.signed_archives import archive_signature, write_signed
from gpuvec.learners.runs.trusted_code import import_code

CHECKPOINTS_TO_KEEP = 2
CHECKPOINT_NAME = re.compile(r"checkpoint-(\d{1,19})\.pt")


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

    Args:
        file: an open file that anybody may have written.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        _require_stored_archive(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(reason[:300]) from error


def _require_stored_archive(file: IO[bytes]) -> None:
    """Raises CheckpointError unless the file is a zip archive without compression, as torch.save writes it.

    Reading the older formats of torch.save executes more code, and compressed content may need any amount of memory.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile as error:
        raise CheckpointError("it is not a file that torch.save wrote, or it is incomplete.") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise CheckpointError("its content is compressed, which torch.save does not do.")
    file.seek(0)
