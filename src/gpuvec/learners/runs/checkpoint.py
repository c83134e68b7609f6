"""Checkpoints as files: written in one move, the last two kept, and read without executing anything in them."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from gpuvec.errors import CheckpointError, RunWriteError, StateError
from gpuvec.learners.runs.checkpoint_schema import require_checkpoint
from gpuvec.learners.runs.folder import RunFolder

CHECKPOINTS_TO_KEEP = 2
NAME = re.compile(r"checkpoint-(\d{1,19})\.pt")


def save(place: Path | str, checkpoint: Mapping[str, Any]) -> Path:
    """Writes checkpoint-<iteration>.pt into a folder, in which the last two are kept.

    Args:
        place: the folder, which exists.
        checkpoint: as `Learner.state_dict` gives it.

    Raises:
        FileNotFoundError: there is no such folder.
        RunWriteError: as `save_in`.
    """
    with RunFolder(place) as folder:
        return save_in(folder, checkpoint)


def save_in(folder: RunFolder, checkpoint: Mapping[str, Any]) -> Path:
    """Writes checkpoint-<iteration>.pt; whoever looks finds it whole or not at all. Older ones but the last are removed.

    Raises:
        RunWriteError: it cannot be written, for example because the disk is full; the message names the newest that is whole.
    """
    name = f"checkpoint-{checkpoint['iteration']}.pt"
    try:
        with folder.replacing(name) as file:
            torch.save(dict(checkpoint), file)
    except RunWriteError as error:
        before = checkpoint_names(folder)
        remedy = f"The newest checkpoint is {folder.path / before[-1]}." if before else "There is no checkpoint from before."
        raise RunWriteError(f"{error} {remedy}") from error
    for old in checkpoint_names(folder)[:-CHECKPOINTS_TO_KEEP]:
        folder.remove(old)
    return folder.path / name


def checkpoint_names(folder: RunFolder) -> list[str]:
    """The names of the checkpoints in a run folder, the newest last."""
    return sort_checkpoints(folder.names())


def sort_checkpoints(names: Iterable[str]) -> list[str]:
    """Those of the names that checkpoints have, by iteration."""
    found = [(int(match[1]), name) for name in names if (match := NAME.fullmatch(name))]
    return [name for _, name in sorted(found)]


def list_checkpoints(path: Path) -> list[Path]:
    """The checkpoints in the run folder at `path`, the newest last."""
    with RunFolder(path) as folder:
        return [path / name for name in checkpoint_names(folder)]


def require_learned(checkpoint: Mapping[str, Any], place: Path) -> None:
    """Raises StateError unless all policies of the checkpoint, which was found there, learned: it does not hold the others."""
    if still := checkpoint["policies"].keys() - checkpoint["args"].keys():
        raise StateError(
            f"{', '.join(sorted(still))} did not learn in {place}: train and play on in Python, where opponents are given."
        )


def load(place: Path | str) -> dict[str, Any]:
    """The checkpoint in that file, or the newest in that run folder, on the CPU. It is data only: nothing of it is executed.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: the file is no checkpoint, one of another version, or damaged. The message names the one before it.
    """
    path = Path(place)
    if path.is_dir():
        with RunFolder(path) as folder:
            return load_newest(folder)
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}; give a run folder or a checkpoint-<iteration>.pt in one.")
    if not path.is_file():
        raise CheckpointError(f"{path} cannot be read as a checkpoint: it is no regular file.")
    with path.open("rb") as file:
        return _load(file, path, _before(path))


def load_newest(folder: RunFolder) -> dict[str, Any]:
    """The newest checkpoint in a run folder; raises as `load`."""
    names = sort_checkpoints(folder.all_names())
    if not names:
        raise FileNotFoundError(f"no checkpoint at {folder.path}; give a run folder or a checkpoint-<iteration>.pt in one.")
    path = folder.path / names[-1]
    try:
        file = folder.open(path.name)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_offer(_before(path))}") from error
    with file:
        return _load(file, path, _before(path))


def _before(path: Path) -> Path | None:
    """The newest checkpoint of the same run that is older than the one at `path`."""
    match = NAME.fullmatch(path.name)
    older = [p for p in list_checkpoints(path.parent) if int(p.name[11:-3]) < int(match[1])] if match else []
    return older[-1] if older else None


def _offer(before: Path | None) -> str:
    return f" The one before it is {before}." if before else ""


def _load(file: IO[bytes], path: Path, before: Path | None) -> dict[str, Any]:
    try:
        _require_archive(file)
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {reason[:300]}{_offer(before)}") from error
    try:
        return require_checkpoint(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be used as a checkpoint: {error}{_offer(before)}") from error


def _require_archive(file: IO[bytes]) -> None:
    """Raises CheckpointError unless it is a zip file as torch.save writes it: older forms run more code when they are read, and
    what is compressed may need any amount of memory.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except zipfile.BadZipFile as error:
        raise CheckpointError("it is not a file that torch.save wrote, or it was cut off.") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise CheckpointError("its content is compressed, which torch.save does not do.")
    file.seek(0)
