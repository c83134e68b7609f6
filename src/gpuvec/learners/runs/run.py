"""The folder of a training run: what was asked for, with which versions, what came of it.

Its files::

    runs/<env>__<algorithm>__<seed>__<time>/
        args.json        the settings, with nothing left open
        versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
        metrics.jsonl    one line per iteration; null where there is no number yet
        checkpoint-<iteration>.pt    the last two; tensors, numbers and strings, read with `weights_only=True`
        tensorboard/     if asked for
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpuvec
from gpuvec.learners.runs.checkpoint import save
from gpuvec.learners.runs.sinks import SINKS, JsonLines, Sink

PACKAGES = ("numpy", "gymnasium", "numba", "numba-cuda", "cuda-core", "cupy-cuda12x", "cupy-cuda13x", "torch")


class Run:
    """The folder of one run.

    Args:
        path: where it is.
        args: the settings.
        sinks: where metrics go besides metrics.jsonl, names of `sinks.SINKS`.
        iteration: after which the run goes on; 0 for a new one.
    """

    def __init__(self, path: Path, args: Mapping[str, Any], sinks: Sequence[str] = (), iteration: int = 0) -> None:
        self.path = path
        steps = iteration * args["num_envs"] * args["num_steps"] if iteration else 0
        self._sinks: list[Sink] = [JsonLines(path, iteration)]
        self._sinks += [SINKS[name](path, args, steps) for name in sinks]

    @classmethod
    def new(cls, runs: Path | str, algorithm: str, args: Mapping[str, Any], sinks: Sequence[str] = ()) -> Run:
        """A folder of its own, `runs`/<env>__<algorithm>__<seed>__<time>."""
        env = re.sub(r"[^\w.-]+", "-", args["env"])
        path = _new_folder(Path(runs) / f"{env}__{algorithm}__{args['seed']}__{time.strftime('%Y%m%d-%H%M%S')}")
        (path / "args.json").write_text(json.dumps(dict(args), indent=2) + "\n")
        (path / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n")
        return cls(path, args, sinks)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Hands the metrics of an iteration on."""
        for sink in self._sinks:
            sink.log(metrics)

    def save(self, checkpoint: Mapping[str, Any]) -> Path:
        """Writes the checkpoint, of which the last two are kept."""
        return save(self.path, checkpoint)

    def close(self) -> None:
        """Nothing will follow."""
        for sink in self._sinks:
            sink.close()


def changed(path: Path) -> dict[str, tuple[str | None, str | None]]:
    """{package: (then, now)} of what the run in `path` depended on and is now another."""
    then, now = json.loads((path / "versions.json").read_text()), versions()
    return {name: (then.get(name), now[name]) for name in now if then.get(name) != now[name]}


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
