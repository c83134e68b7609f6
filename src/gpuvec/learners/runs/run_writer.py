"""Writes the folder of a training run: its settings, versions, metrics, checkpoints and result.

The files of the folder::

    runs/<env>__<algorithm>__<seed>__<time>/
        args.json        the settings, all with values
        versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
        metrics.jsonl    one line per iteration; null where there is no number yet
        checkpoint-<iteration>.pt    the last two; tensors, numbers and strings, read with `weights_only=True`
        processes.json   the number of processes and shards, and a token of the job; of several shards, or of torchrun
        result.json      the evaluation at the end, and what ended the training; missing while it has not ended
        failure.html     the last states before a number that was not finite, if that ended the training
        live-<iteration>.html, live-<iteration>.safetensors    with `--watch`: replays and their policies, see `replay.live`
        live-<iteration>.mp4, live-<iteration>.gif    with `--capture-video`
        lock             locked by the process that writes to the folder
        tensorboard/     only with `--log tensorboard`
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gpuvec
from gpuvec.errors import CheckpointError, RunInUseError
from gpuvec.learners.runs.checkpoint import save_to_folder
from gpuvec.learners.runs.folder import LOCK_NAME, PART_NAME, RunFolder
from gpuvec.learners.runs.records import (
    FAILURE,
    MAX_RECORD_BYTES,
    METRICS,
    PROCESSES,
    RESULT,
    SETTINGS,
    VERSIONS,
    parse_json,
    to_json,
)
from gpuvec.learners.runs.sinks import NO_TRACKING, JsonLines, TensorBoard, Tracker, Tracking

PACKAGES = ("numpy", "gymnasium", "numba", "numba-cuda", "cuda-core", "cupy-cuda12x", "cupy-cuda13x", "torch")


class RunWriter:
    """Writes the files of a run folder, which it locks.

    Args:
        folder: the run folder, which `close` closes.
        args: the settings.
        tracking: where metrics are sent besides metrics.jsonl.
        iteration: the iteration after which the run continues; 0 for a new run.

    Raises:
        RunInUseError: another process writes to the folder.
        CheckpointError: the folder contains links or damaged metrics.
        RunWriteError: a file cannot be written, or a tracker cannot begin the run.
    """

    def __init__(
        self, folder: RunFolder, args: Mapping[str, Any], tracking: Tracking = NO_TRACKING, iteration: int = 0
    ) -> None:
        folder.lock()
        self._folder, self.path = folder, folder.path
        for name in tracking.log:
            folder.require_not_link(name)
        self._metrics = JsonLines(folder, iteration)
        folder.remove(RESULT)
        folder.remove(FAILURE)
        folder.write(SETTINGS, to_json(dict(args)))
        self._trackers: list[TensorBoard | Tracker] = []
        self._steps_per_iteration = args["num_envs"] * args["num_steps"] if tracking.log else 0
        try:
            for name in tracking.log:
                self._trackers.append(tracking.open(name, self.path, args, iteration * self._steps_per_iteration))
        except BaseException:
            self._close_sinks()
            raise

    @classmethod
    def new(cls, runs: Path | str, algorithm: str, args: Mapping[str, Any], tracking: Tracking = NO_TRACKING) -> RunWriter:
        """Creates the folder of a new run, <env>__<algorithm>__<seed>__<time>, and removes it if a file cannot be written.

        Args:
            runs: the path of the folder in which the run folder is created.
            algorithm: the name of the algorithm.
            args: the settings.
            tracking: where metrics are sent besides metrics.jsonl.

        Raises:
            RunWriteError: a file cannot be written.
        """
        return cls.create(create_run_folder(runs, args["env"], algorithm, args["seed"]), args, tracking)

    @classmethod
    def create(cls, path: Path, args: Mapping[str, Any], tracking: Tracking = NO_TRACKING) -> RunWriter:
        """Begins a run in a folder that has none, and removes the folder if a file cannot be written.

        Args:
            path: that of the folder, which is created if it does not exist.
            args: the settings.
            tracking: where metrics are sent besides metrics.jsonl.

        Raises:
            RunInUseError: another process writes to the folder, or wrote to it; the folder is unchanged.
            RunWriteError: a file cannot be written.
        """
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        is_own = False
        try:
            # The caller may have looked minutes ago, before it compiled.
            folder.lock()
            is_own = has_no_run(folder.all_names())
            if not is_own:
                raise RunInUseError(
                    f"another training began a run in {path} while this one compiled: wait for it to end and continue it, or "
                    "give another folder."
                )
            folder.write(VERSIONS, to_json(collect_versions()))
            return cls(folder, args, tracking)
        except BaseException:
            if is_own:
                shutil.rmtree(path, ignore_errors=True)  # while it is locked, so that no other run can begin in it
            folder.close()
            with suppress(OSError):  # it has files, or is removed; otherwise not even the lock could be written
                path.rmdir()
            raise

    def record_processes(self, values: Mapping[str, Any]) -> None:
        """Writes the processes of the training.

        Args:
            values: {name: value} for processes.json.

        Raises:
            RunWriteError: the file cannot be written.
        """
        self._folder.write(PROCESSES, to_json(values))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Passes the metrics of an iteration to all sinks.

        Args:
            metrics: {name: value}, with "iteration" and "steps"; nan where there is no number yet.

        Raises:
            RunWriteError: metrics.jsonl cannot be written.
        """
        self._metrics.log(metrics)
        for tracker in self._trackers:
            tracker.log(metrics)

    def log_video(self, stem: str, iteration: int) -> None:
        """Passes a video in the run folder to the trackers.

        Args:
            stem: the names of its files without their suffixes.
            iteration: the number of iterations of the policy that it shows.

        Raises:
            CheckpointError: the file is a link.
        """
        for tracker in self._trackers:
            name = stem + tracker.video_suffix
            self._folder.require_not_link(name)
            if name in self._folder.file_names():  # the last two videos may come at once, and the first one be surplus already
                tracker.log_video(self.path / name, iteration * self._steps_per_iteration)

    def save(self, checkpoint: Mapping[str, Any]) -> Path:
        """Writes a checkpoint, and removes all but the last two.

        Args:
            checkpoint: the checkpoint, as `Learner.state_dict` returns it.

        Returns:
            The path of the file.

        Raises:
            RunWriteError: the file cannot be written.
        """
        return save_to_folder(self._folder, checkpoint)

    def save_failure(self, page: bytes) -> Path:
        """Writes the replay of a number that was not finite, and returns its path.

        Args:
            page: the content of the HTML file.

        Raises:
            RunWriteError: the file cannot be written.
        """
        self._folder.write(FAILURE, page)
        return self.path / FAILURE

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes the result of the run, which marks it as complete unless `on_iteration` of its training stopped it.

        Args:
            result: {name: value} for result.json, such as "mean_return" of an evaluation, and "ended_by" of
                `training.Result`.

        Raises:
            RunWriteError: the file cannot be written.
        """
        self._folder.write(RESULT, to_json(dict(result)))

    def close(self) -> None:
        """Closes all files and unlocks the folder."""
        self._close_sinks()
        self._folder.close()

    def _close_sinks(self) -> None:
        for sink in (self._metrics, *self._trackers):
            sink.close()


def has_no_run(names: Iterable[str]) -> bool:
    """Whether a folder with these entries is free for a run: it is empty, or a process was killed while it began one there.

    Args:
        names: the names of all entries.
    """
    # `RunWriter` writes the settings after these files.
    return all(name in (LOCK_NAME, VERSIONS, METRICS) or PART_NAME.fullmatch(name) for name in names)


def changed_versions(folder: RunFolder) -> dict[str, tuple[str | None, str | None]]:
    """Compares the versions that a run was started with to those of this process.

    Args:
        folder: the run folder.

    Returns:
        {package: (version in the run, version now)} of those that differ; None where a package is not installed.

    Raises:
        CheckpointError: versions.json is missing or damaged.
    """
    try:
        recorded = parse_json(folder.read(VERSIONS, MAX_RECORD_BYTES))
    except FileNotFoundError:
        recorded = None
    if not isinstance(recorded, dict) or not all(isinstance(value, str | None) for value in recorded.values()):
        raise CheckpointError(f"{folder.path / VERSIONS} is not a JSON object of packages and versions: it is damaged.")
    current = collect_versions()
    return {name: (recorded.get(name), current[name]) for name in current if recorded.get(name) != current[name]}


def collect_versions() -> dict[str, str | None]:
    """{name: version} of the software on which the numbers of a run depend.

    A version is None for a package that is not installed, and for "commit" if gpuvec does not run from a checkout.
    """
    versions: dict[str, str | None] = {"gpuvec": gpuvec.__version__, "commit": git_commit()}
    versions |= {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def git_commit() -> str | None:
    """The commit of the checkout from which gpuvec runs, with "-dirty" if files differ from it; None without a checkout."""
    package_folder = Path(gpuvec.__file__).parent

    def git(*arguments: str) -> str | None:
        """The output of a command of git, or None if it fails."""
        try:
            process = subprocess.run(["git", "-C", str(package_folder), *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return process.stdout.strip()

    # A virtual environment may be inside the checkout of another project, which does not track the files of gpuvec.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return head and head + ("-dirty" if changes else "")


def create_run_folder(runs: Path | str, env: str, algorithm: str, seed: int) -> Path:
    """Creates the folder <env>__<algorithm>__<seed>__<time>, or the first of <...>-2, <...>-3, ... that does not exist.

    Args:
        runs: the path of the folder in which it is created.
        env: the id of the environment.
        algorithm: the name of the algorithm.
        seed: the seed of the training.
    """
    env_name = re.sub(r"[^\w.-]+", "-", env)
    algorithm_name = algorithm.rpartition(":")[2]
    path = Path(runs) / f"{env_name}__{algorithm_name}__{seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    # Runs may start in the same second.
    for attempt in range(1, 1000):
        candidate = path if attempt == 1 else path.with_name(f"{path.name}-{attempt}")
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        return candidate
    raise FileExistsError(f"{path} exists, and 998 folders with its name and a number.")
