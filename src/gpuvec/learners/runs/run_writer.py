"""Writes the folder of a training run: its settings, versions, metrics, checkpoints and result, for the command line and for
`train(run_folder=...)`; and finds the run of processes that torchrun starts again.

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
import secrets
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gpuvec
from gpuvec.errors import CheckpointError, ProcessesError, RunInUseError, StateError
from gpuvec.learners.algorithms import args_from_dict, args_to_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.runs.checkpoint import checkpoint_names, load_newest, save_to_folder
from gpuvec.learners.runs.folder import LOCK_NAME, PART_NAME, RunFolder
from gpuvec.learners.runs.records import (
    FAILURE,
    MAX_RECORD_BYTES,
    METRICS,
    PROCESSES,
    PYTHON_OBJECTS,
    RESULT,
    SETTINGS,
    VERSIONS,
    parse_json,
    read_record,
    to_json,
)
from gpuvec.learners.runs.sinks import NO_TRACKING, JsonLines, TensorBoard, Tracker, Tracking
from gpuvec.learners.runs.trusted_code import signing_problem
from gpuvec.learners.shards.join import job_store
from gpuvec.learners.shards.process_group import Processes, comparable_settings
from gpuvec.learners.shards.torchrun import Sharding, Sync, number_of_shards, read_launch

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner

PACKAGES = ("numpy", "gymnasium", "numba", "numba-cuda", "cuda-core", "cupy-cuda12x", "cupy-cuda13x", "torch")
# Of the store of torchrun, which no other job has.
BEGINNING_KEY = "gpuvec/beginning"  # of processes that were not started again
RUN_KEY = "gpuvec/run"  # of the run
MAY_CHANGE = ("total_steps", "num_iterations")  # settings that a training which continues need not share with its beginning


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
        """Writes the replay of a number that was not finite, an HTML page, and returns its path.

        Raises:
            RunWriteError: the file cannot be written.
        """
        self._folder.write(FAILURE, page)
        return self.path / FAILURE

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes a file of JSON.

        Args:
            name: the name of the file.
            record: {name: value}.

        Raises:
            RunWriteError: the file cannot be written.
        """
        self._folder.write(name, to_json(record))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes the result of the run, which marks it as complete unless `on_iteration` of its training stopped it.

        Args:
            result: {name: value} for result.json, such as "mean_return" of an evaluation, and "ended_by" of
                `training.Result`.

        Raises:
            RunWriteError: the file cannot be written.
        """
        self.write(RESULT, result)

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


def new_run_folder(runs: Path | str, env: str, algorithm: str, seed: int) -> RunFolder:
    """Creates the folder of a population or of a search, locks it, and writes versions.json.

    Args:
        runs, env, algorithm, seed: as in `create_run_folder`.

    Raises:
        RunWriteError: the file cannot be written.
    """
    folder = RunFolder(create_run_folder(runs, env, algorithm, seed))
    folder.lock()
    folder.write(VERSIONS, to_json(collect_versions()))
    return folder


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


class RunRecorder:
    """Writes metrics and checkpoints of a training to its run folder, and ends the training after a signal.

    Args:
        open_run: creates or opens the run folder. It is called after the first iteration, so that settings that cannot be used
            leave no folder.
        checkpoint_every: iterations between two checkpoints.
        sharding: how the environments are divided.
        processes: the processes of the training, of which the first one writes.
        token: that of the job of torchrun if it continues its own run, which must find this token again; None for a new one.
    """

    def __init__(
        self,
        open_run: Callable[[], RunWriter],
        checkpoint_every: int,
        sharding: Sharding,
        processes: Processes,
        token: str | None = None,
    ) -> None:
        self._open_run, self._checkpoint_every, self._processes = open_run, checkpoint_every, processes
        self._signal = 0
        self.received_signal: Callable[[], int] = lambda: 0
        """Returns the number of the signal that this process received; 0 for none."""
        self.run: RunWriter | None = None
        self.last_checkpoint: Path | None = None
        self.stop_signal = 0
        """The number of the signal that ended the training; 0 for none."""
        self._record = {
            "processes": processes.size,
            "shards": number_of_shards(sharding, processes.size),
            "deterministic_shards": sharding.deterministic_shards,
            "sync": sharding.sync,
            "job": token or secrets.token_hex(16),
        }

    @property
    def num_shards(self) -> int:
        """The number of shards of the training."""
        return int(self._record["shards"])

    def open(self) -> RunWriter | None:
        """Returns the run folder, which exists from the first call on; None if another process writes it."""
        if self.run is None and self._processes.rank == 0:
            self.run = self._open_run()
            if self.num_shards > 1 or read_launch() is not None:
                self.run.write(PROCESSES, self._record)
                # Processes that torchrun may start after this one learn which run they continue.
                if (store := job_store()) is not None:
                    store.set(RUN_KEY, f"{self._record['job']} {self.run.path.resolve()}")
        return self.run

    def save_if_due(self, learner: Learner, metrics: Mapping[str, float]) -> None:
        """Writes a checkpoint if one is due after an iteration, and ends the training if a process received a signal.

        Args:
            learner: the learner, which may be one iteration ahead of the metrics.
            metrics: the metrics of the iteration.

        Raises:
            KeyboardInterrupt: one of the processes received a signal.
        """
        if metrics["iteration"] < learner.iteration:
            return
        if self.is_checkpoint_due(learner.iteration):
            checkpoint = learner.state_dict()
            if self.run is not None:
                self.last_checkpoint = self.run.save(checkpoint)
        self.stop_signal = self._common_signal()
        if self.stop_signal:
            raise KeyboardInterrupt

    def is_checkpoint_due(self, iteration: int) -> bool:
        """Whether a checkpoint is written after an iteration. All processes must call it equally often.

        Args:
            iteration: the number of the iteration.
        """
        return iteration % self._checkpoint_every == 0 or self._common_signal() != 0

    def _common_signal(self) -> int:
        """The number of the signal that one of the processes received, the same for all of them."""
        self._signal = self._signal or self._processes.largest(self.received_signal())
        return self._signal

    def save_last(self, checkpoint: Mapping[str, Any]) -> RunWriter:
        """Writes the final checkpoint, and returns the run folder.

        Args:
            checkpoint: that of the result.
        """
        assert self.run is not None, "there is at least one iteration"
        self.run.save(checkpoint)
        return self.run

    def close(self) -> None:
        """Closes the run folder if it was opened."""
        if self.run is not None:
            self.run.close()


@contextmanager
def record_run(
    path: Path,
    configs: Mapping[str, Any],
    objects: Mapping[str, Any],
    checkpoint: Mapping[str, Any] | None,
    checkpoint_every: int,
    sharding: Sharding,
    processes: Processes,
) -> Iterator[tuple[RunRecorder, Mapping[str, Any] | None]]:
    """Begins a run folder, or continues one that a training with the same settings began.

    A first SIGINT or SIGTERM ends the training in the block after its iteration, with a checkpoint.

    Args:
        path: that of the run folder.
        configs: {role: settings, resolved, or an opponent}.
        objects: {argument of `train`: object} of those of `PYTHON_OBJECTS`.
        checkpoint: the state with which a new run begins; None for none. A run with checkpoints continues from the newest.
        checkpoint_every: iterations between two checkpoints.
        sharding: how the environments are divided.
        processes: the processes of the training.

    Yields:
        What writes the folder, and the checkpoint from which the training continues; None for a new one.

    Raises:
        ValueError: a number out of range, or a folder that is not that of a run.
        StateError: the settings differ from those of the run, it is complete, or it did not begin with the given checkpoint.
        RunInUseError: another process writes to the folder.
        KeyboardInterrupt, SystemExit: a signal ended the training.
    """
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}.")
    processes.require_equal({"checkpoint_every": str(checkpoint_every)})  # all gather a checkpoint at the same time
    policies = {role: args_to_dict(config) for role, config in configs.items() if isinstance(config, TrainingArgs)}
    if processes.rank == 0 and (problem := signing_problem(policies)):
        warnings.warn(problem, stacklevel=2)
    with ExitStack() as stack:
        folder, first_iteration = _begun_folder(path, processes.rank == 0), 0
        if folder is not None:
            stack.callback(folder.close)
            if checkpoint_names(folder):
                own = _newest_checkpoint(folder, configs, objects)
                if checkpoint is not None and checkpoint["iteration"] > own["iteration"]:
                    raise StateError(
                        f"{path} has a run of {own['iteration']} iterations, which did not begin with the given checkpoint of "
                        f"iteration {checkpoint['iteration']}: give none to continue the run, or another folder."
                    )
                checkpoint, first_iteration = own, own["iteration"]

        def open_run() -> RunWriter:
            record = _settings_record(configs, objects)
            return RunWriter.create(path, record) if folder is None else RunWriter(folder, record, iteration=first_iteration)

        recorder = stack.enter_context(closing(RunRecorder(open_run, checkpoint_every, sharding, processes)))
        recorder.received_signal = stack.enter_context(deferred_signals())
        try:
            yield recorder, checkpoint
        except KeyboardInterrupt:
            if recorder.stop_signal:
                # torchrun ends the other processes when one has ended, which must not be before the first one has saved.
                processes.wait_for_all()
            if recorder.stop_signal == signal.SIGTERM:
                raise SystemExit(128 + recorder.stop_signal) from None
            raise


def _begun_folder(path: Path, is_writer: bool) -> RunFolder | None:
    """Returns the folder of a run that was begun, which the process that writes to it locks; None for a new one."""
    if path.is_dir() and (path / SETTINGS).is_file():
        folder = RunFolder(path)
        if is_writer:
            folder.lock()
        return folder
    if path.exists() and not (path.is_dir() and has_no_run(entry.name for entry in path.iterdir())):
        raise ValueError(f"{path} is not a run folder, and not empty: give the path of a new folder.")
    return None


def _newest_checkpoint(folder: RunFolder, configs: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    checkpoint = load_newest(folder)
    require_same_settings(checkpoint, configs, folder.path)
    ours, theirs = _names(objects), read_record(folder, SETTINGS)
    for name in PYTHON_OBJECTS:
        if theirs.get(name) != ours.get(name):
            raise StateError(
                f"{folder.path} was trained with {name}={str(theirs.get(name))[:200]}, and this training has {ours.get(name)}."
            )
    args = next(config for config in configs.values() if isinstance(config, TrainingArgs))
    if checkpoint["iteration"] >= args.iterations:
        raise StateError(
            f"{folder.path} is complete, with {args.iterations} iterations: give a larger total_steps to continue it, or "
            "another folder."
        )
    if read_record(folder, RESULT).get("ended_by") == "target_return":
        raise StateError(f"{folder.path} is complete, since it reached its target_return: give another folder.")
    return checkpoint


def _settings_record(configs: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of args.json: the settings of the first policy, those of others if they differ, and names of objects."""
    policies = {
        role: args_to_dict(config) if isinstance(config, TrainingArgs) else {"policy": type(config).__name__}
        for role, config in configs.items()
    }
    record = next(policies[role] for role, config in configs.items() if isinstance(config, TrainingArgs))
    if any(policy != record for policy in policies.values()):
        record = {**record, "policies": policies}
    return {**record, **_names(objects)}


def _names(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {argument: name} of the objects that are not None, and of several for the roles {argument: {role: name}}."""
    return {
        argument: _names(each) if isinstance(each, Mapping) else _name(each)
        for argument, each in objects.items()
        if each is not None
    }


def _name(value: Any) -> str:
    """The name of a function or a class, or of the class of an object, by which a reader finds it."""
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}.{owner.__qualname__}"


class JobRun(NamedTuple):
    """The run folder that the processes of a job of torchrun write."""

    path: Path
    token: str
    """A random text, which processes.json of this folder has, too."""


def interrupted_run() -> JobRun | None:
    """Returns the run with a checkpoint that this job of torchrun began; None without one, or if it was not started again.

    The name is in the store of torchrun, which ends with the job: another job, with whatever id, has another store. It is in
    the agent of the first process, and is a new one when this process moves to another machine.

    Raises:
        ProcessesError: the store, or the run folder, cannot be reached from this machine, or the store is a new one.
        StateError: the folder is another one than that which the job began.
    """
    launch = read_launch()
    if launch is None:
        return None
    store = job_store()
    if not launch.restarts:
        if store is not None:
            store.set(BEGINNING_KEY, "")
        return None
    if store is None or not store.check([BEGINNING_KEY]):
        problem = "has no store that outlives them" if store is None else "its store is not that of their beginning"
        raise ProcessesError(
            f"torchrun started the processes again, and {problem}: this job cannot know its run. Continue it by `gpuvec resume "
            "RUN`, or start a new job if it has none."
        )
    if not store.check([RUN_KEY]):
        return None
    token, _, path = store.get(RUN_KEY).decode().partition(" ")
    run = JobRun(Path(path), token)
    if not run.path.is_dir():
        raise ProcessesError(
            f"process {launch.rank} cannot continue {path}, the run of this job, because this machine has no such folder: "
            "write runs to a file system that all machines share, or copy the folder and use `gpuvec resume`."
        )
    with RunFolder(run.path) as folder:
        if _processes_record(folder).get("job") != token:
            raise StateError(f"{path} is not the run that this job began: its {PROCESSES} has another job. Start a new run.")
        return run if checkpoint_names(folder) else None


def require_same_settings(checkpoint: Mapping[str, Any], configs: Mapping[str, Any], path: Path) -> None:
    """Checks that a training has the settings of the run that it is to continue, apart from `MAY_CHANGE` and the device.

    Args:
        checkpoint: that of the run.
        configs: {role: settings, resolved, or an opponent} of the training.
        path: that of the run folder.

    Raises:
        StateError: they differ; the message names the first difference.
    """
    settings = {role: config for role, config in configs.items() if isinstance(config, TrainingArgs)}
    saved = {role: args_from_dict(values) for role, values in checkpoint["args"].items()}
    ours, theirs = comparable_settings(settings), comparable_settings(saved)
    for name in dict.fromkeys([*theirs, *ours]):
        if name.rpartition("/")[2] not in MAY_CHANGE and theirs.get(name) != ours.get(name):
            raise StateError(
                f"{path} is a run with {name}={theirs.get(name)}, and this training has {ours.get(name)}: give the settings of "
                "the run to continue it, or another folder to begin a new one."
            )


def recorded_sync(folder: RunFolder) -> Sync:
    """Returns what the processes of a run exchange.

    Args:
        folder: the run folder.
    """
    return "iteration" if _processes_record(folder).get("sync") == "iteration" else "gradient"


def _processes_record(folder: RunFolder) -> dict[str, Any]:
    """The contents of processes.json, which must be readable if it is there; empty for a run of one shard."""
    if PROCESSES not in folder.file_names():
        return {}
    record = parse_json(folder.read(PROCESSES, MAX_RECORD_BYTES))
    return record if isinstance(record, dict) else {}
