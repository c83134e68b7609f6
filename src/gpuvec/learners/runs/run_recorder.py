"""Writes the run folder of a training while it trains: for the command line, and for `train(run_folder=...)`."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.runs.checkpoint import checkpoint_names, load_newest
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import PYTHON_OBJECTS, RESULT, SETTINGS
from gpuvec.learners.runs.restarts import JobRun, new_token, publish_run, require_same_settings
from gpuvec.learners.runs.run_writer import RunWriter, has_no_run
from gpuvec.learners.runs.summary import read_record
from gpuvec.learners.runs.trusted_code import signing_problem
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.torchrun import Sharding, number_of_shards, read_launch

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner


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
            "job": token or new_token(),
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
                self.run.record_processes(self._record)
                publish_run(JobRun(self.run.path, str(self._record["job"])))
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


class RecordedRun(NamedTuple):
    """A training from Python whose run folder is written."""

    recorder: RunRecorder
    checkpoint: Mapping[str, Any] | None
    """That from which it continues; None for a new one."""


@contextmanager
def record_run(
    path: Path,
    configs: Mapping[str, Any],
    objects: Mapping[str, Any],
    checkpoint: Mapping[str, Any] | None,
    checkpoint_every: int,
    sharding: Sharding,
    processes: Processes,
) -> Iterator[RecordedRun]:
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

    Raises:
        ValueError: a number out of range, or a folder that is not that of a run.
        StateError: the settings differ from those of the run, it is complete, or it did not begin with the given checkpoint.
        RunInUseError: another process writes to the folder.
        KeyboardInterrupt, SystemExit: a signal ended the training.
    """
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}.")
    processes.require_equal({"checkpoint_every": str(checkpoint_every)})  # all gather a checkpoint at the same time
    _warn_of_missing_signature(configs, processes)
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
            yield RecordedRun(recorder, checkpoint)
        except KeyboardInterrupt:
            if recorder.stop_signal:
                # torchrun ends the other processes when one has ended, which must not be before the first one has saved.
                processes.wait_for_all()
            if recorder.stop_signal == signal.SIGTERM:
                raise SystemExit(128 + recorder.stop_signal) from None
            raise


def _warn_of_missing_signature(configs: Mapping[str, Any], processes: Processes) -> None:
    """Warns, in the process that writes the run folder, if it will need --trust though this user writes it."""
    policies = {role: args_to_dict(config) for role, config in configs.items() if isinstance(config, TrainingArgs)}
    if processes.rank == 0 and (problem := signing_problem(policies)):
        warnings.warn(problem, stacklevel=3)


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
