"""Writes the folder of a training run: its settings, versions, metrics, checkpoints and result.

Its files::

    runs/<env>__<algorithm>__<seed>__<time>/
        args.json        the settings, with nothing left open
        versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
        metrics.jsonl    one line per iteration; null where there is no number yet
        checkpoint-<iteration>.pt    the last two; tensors, numbers and strings, read with `weights_only=True`
        result.json      what the evaluation at the end gave; missing while the run is not complete
        lock             held by the process that writes to the folder
        tensorboard/     if asked for
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpuvec
from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.checkpoint import save_in
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import RECORD_LIMIT, RESULT, SETTINGS, VERSIONS, parse_json, to_json
from gpuvec.learners.runs.sinks import SINKS, JsonLines, Sink

PACKAGES = ("numpy", "gymnasium", "numba", "numba-cuda", "cuda-core", "cupy-cuda12x", "cupy-cuda13x", "torch")


class RunWriter:
    """A run folder that this process writes to.

    Args:
        folder: which is locked by this, and closed by `close`.
        args: the settings.
        sinks: where metrics go besides metrics.jsonl, names of `sinks.SINKS`.
        iteration: after which the run continues; 0 for a new one.

    Raises:
        RunInUseError: another process writes to the folder.
        CheckpointError: the folder holds links, or metrics that are damaged.
        RunWriteError: it cannot be written.
    """

    def __init__(self, folder: RunFolder, args: Mapping[str, Any], sinks: Sequence[str] = (), iteration: int = 0) -> None:
        folder.lock()
        self._folder, self.path = folder, folder.path
        for name in sinks:
            folder.require_not_link(name)
        metrics = JsonLines(folder, iteration)
        folder.remove(RESULT)
        folder.write(SETTINGS, to_json(dict(args)))
        steps = iteration * args["num_envs"] * args["num_steps"] if iteration else 0
        self._sinks: list[Sink] = [metrics]
        self._sinks += [SINKS[name](self.path, args, steps) for name in sinks]

    @classmethod
    def new(cls, runs: Path | str, algorithm: str, args: Mapping[str, Any], sinks: Sequence[str] = ()) -> RunWriter:
        """A folder of its own, `runs`/<env>__<algorithm>__<seed>__<time>; none is left if it cannot be written."""
        env = re.sub(r"[^\w.-]+", "-", args["env"])
        path = _new_folder(Path(runs) / f"{env}__{algorithm}__{args['seed']}__{time.strftime('%Y%m%d-%H%M%S')}")
        folder = RunFolder(path)
        try:
            folder.write(VERSIONS, to_json(collect_versions()))
            return cls(folder, args, sinks)
        except BaseException:
            folder.close()
            shutil.rmtree(path)
            raise

    def log(self, metrics: Mapping[str, float]) -> None:
        """Passes the metrics of an iteration to the sinks."""
        for sink in self._sinks:
            sink.log(metrics)

    def save(self, checkpoint: Mapping[str, Any]) -> Path:
        """Writes the checkpoint, of which the last two are kept."""
        return save_in(self._folder, checkpoint)

    def finish(self, result: Mapping[str, float]) -> None:
        """Writes what the evaluation gave, which marks the run as complete."""
        self._folder.write(RESULT, to_json(dict(result)))

    def close(self) -> None:
        """Closes all files and releases the folder."""
        for sink in self._sinks:
            sink.close()
        self._folder.close()


def changed_versions(folder: RunFolder) -> dict[str, tuple[str | None, str | None]]:
    """{package: (then, now)} of what the run depended on and is now another.

    Raises:
        CheckpointError: versions.json is missing or damaged.
    """
    try:
        then = parse_json(folder.read(VERSIONS, RECORD_LIMIT))
    except FileNotFoundError:
        then = None
    if not isinstance(then, dict) or not all(isinstance(value, str | None) for value in then.values()):
        raise CheckpointError(f"{folder.path / VERSIONS} is not a JSON object of packages and versions: it is damaged.")
    now = collect_versions()
    return {name: (then.get(name), now[name]) for name in now if then.get(name) != now[name]}


def collect_versions() -> dict[str, str | None]:
    """What the run depends on; None for a package that is not installed, or without a checkout."""
    found: dict[str, str | None] = {"gpuvec": gpuvec.__version__, "commit": git_commit()}
    found |= {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def git_commit() -> str | None:
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
