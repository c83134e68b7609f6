"""The folder of a training run: what was asked for, with which versions, what came of it.

runs/<env>__<algorithm>__<seed>__<time>/
    args.json        the settings, with nothing left open
    versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
    metrics.jsonl    one line per iteration; null where there is no number yet
    checkpoint.pt    tensors, numbers and strings; read with `weights_only=True`
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import gpuvec
from gpuvec.errors import StateError
from gpuvec.learners.algorithms import ARGS

PACKAGES = ("numpy", "gymnasium", "numba", "numba-cuda", "cuda-core", "cupy-cuda12x", "cupy-cuda13x", "torch")


class Run:
    """The folder of one run, new at `runs`/<env>__<algorithm>__<seed>__<time>."""

    def __init__(self, runs: Path | str, algorithm: str, args: Mapping[str, Any]) -> None:
        env = re.sub(r"[^\w.-]+", "-", args["env"])
        name = f"{env}__{algorithm}__{args['seed']}__{time.strftime('%Y%m%d-%H%M%S')}"
        self.path = _new_folder(Path(runs) / name)
        (self.path / "args.json").write_text(json.dumps(dict(args), indent=2) + "\n")
        (self.path / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n")
        self._metrics = (self.path / "metrics.jsonl").open("a", buffering=1)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Adds a line to the metrics."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._metrics.write(json.dumps(finite) + "\n")

    def save(self, checkpoint: Mapping[str, Any]) -> Path:
        """Writes the checkpoint in one move: whoever reads it finds the old one or the new one, never a part."""
        path, part = self.path / "checkpoint.pt", self.path / "checkpoint.pt.part"
        with part.open("wb") as file:
            torch.save(dict(checkpoint), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        return path

    def close(self) -> None:
        """Closes the metrics file."""
        self._metrics.close()


def load(place: Path | str) -> dict[str, Any]:
    """The checkpoint in that file or run folder, on the CPU. It is data only: reading it executes none of its content.

    Raises:
        FileNotFoundError: there is none.
        StateError: the file is no checkpoint.
    """
    path = Path(place)
    path = path / "checkpoint.pt" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}; give a run folder or the checkpoint.pt in one.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise StateError(f"{path} cannot be read as a checkpoint: {str(error).splitlines()[0]}") from error
    if not isinstance(checkpoint, dict) or not {"algorithm", "args", "network"} <= checkpoint.keys():
        raise StateError(f"{path} is no checkpoint of a gpuvec learner.")
    if checkpoint["algorithm"] not in ARGS:
        raise StateError(f"{path} is a checkpoint of {checkpoint['algorithm']!r}; this version has {', '.join(ARGS)}.")
    return checkpoint


def versions() -> dict[str, str | None]:
    """What the run depends on; None for a package that is not installed, or without a checkout."""
    found: dict[str, str | None] = {"gpuvec": gpuvec.__version__, "commit": commit()}
    found |= {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The commit of the checkout that gpuvec runs from, "-dirty" if files differ from it; None outside a checkout."""
    package = Path(gpuvec.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(package), *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    if git("ls-files", "--error-unmatch", "__init__.py") is None:  # an environment inside another project's checkout
        return None
    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return head and head + ("-dirty" if changes else "")


def _new_folder(path: Path) -> Path:
    """Makes `path`, or the first of path-2, path-3, ... that is free: several runs may start within a second."""
    for attempt in range(1, 1000):
        place = path if attempt == 1 else path.with_name(f"{path.name}-{attempt}")
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        return place
    raise FileExistsError(f"{path} and 998 more of that name exist.")
