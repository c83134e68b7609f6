"""What processes that torchrun starts again read of their run: which one they had begun, and what they exchange."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuvec.errors import ProcessesError, StateError
from gpuvec.learners.algorithms import args_from_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.runs.checkpoint import checkpoint_names
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, PROCESSES, parse_json
from gpuvec.learners.shards.join import job_store
from gpuvec.learners.shards.sharding import comparable_settings
from gpuvec.learners.shards.torchrun import Sync, read_launch

# Of the store of torchrun, which no other job has.
BEGINNING_KEY = "gpuvec/beginning"  # of processes that were not started again
RUN_KEY = "gpuvec/run"  # of the run
MAY_CHANGE = ("total_steps", "num_iterations")  # settings that a training which continues need not share with its beginning


class JobRun(NamedTuple):
    """The run folder that the processes of a job of torchrun write."""

    path: Path
    token: str
    """A random text, which processes.json of this folder has, too."""


def new_token() -> str:
    """Returns the token of a job that begins to write a run folder."""
    return secrets.token_hex(16)


def publish_run(run: JobRun) -> None:
    """Tells the processes that torchrun may start after this one which run they continue; it has no effect without torchrun.

    Args:
        run: the run folder, which has processes.json, and need not have a checkpoint.
    """
    store = job_store()
    if store is not None:
        store.set(RUN_KEY, f"{run.token} {run.path.resolve()}")


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
    """The contents of processes.json; empty for a run of one shard."""
    if PROCESSES not in folder.file_names():
        return {}
    record = parse_json(folder.read(PROCESSES, MAX_RECORD_BYTES))
    return record if isinstance(record, dict) else {}
