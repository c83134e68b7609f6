"""Checkpoints as files: written in one move, the last two kept, and read without executing anything in them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import ARGS
from gpuvec.learners.learner import FORMAT

KEPT = 2
NAME = re.compile(r"checkpoint-(\d+)\.pt")


def save(folder: Path, checkpoint: Mapping[str, Any]) -> Path:
    """Writes checkpoint-<iteration>.pt; whoever looks finds it whole or not at all. Older ones but the last go.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder at {folder}: make it first, with Path({str(folder)!r}).mkdir(parents=True).")
    path = folder / f"checkpoint-{checkpoint['iteration']}.pt"
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(dict(checkpoint), file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    for old in saved(folder)[:-KEPT]:
        old.unlink()
    return path


def saved(folder: Path) -> list[Path]:
    """The checkpoints in a run folder, the newest last."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


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
        StateError: the file is no checkpoint, or one of another version.
    """
    path = Path(place)
    before: list[Path] = []
    if path.is_dir() and (all_ := saved(path)):
        *before, path = all_
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}; give a run folder or a checkpoint-<iteration>.pt in one.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        other = f" The one before it is {before[-1]}." if before else ""
        raise StateError(f"{path} cannot be read as a checkpoint: {str(error).splitlines()[0]}{other}") from error
    if not isinstance(checkpoint, dict) or not {"format", "args", "env"} <= checkpoint.keys():
        raise StateError(f"{path} is no checkpoint of a gpuvec learner.")
    if checkpoint["format"] != FORMAT:
        raise StateError(
            f"{path} has the format {checkpoint['format']}; this gpuvec reads {FORMAT}: use the version that wrote it."
        )
    for settings in checkpoint["args"].values():
        if settings["algorithm"] not in ARGS:
            raise StateError(f"{path} is a checkpoint of {settings['algorithm']!r}; this version has {', '.join(ARGS)}.")
    return checkpoint
