"""Sinks, to which the metrics of a run are sent: metrics.jsonl, TensorBoard, Weights & Biases and trackio.

Your own sink has the two methods of `Sink`. Call it in the `on_iteration` of `training.train`.
"""

from __future__ import annotations

import importlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpuvec.errors import CheckpointError, MissingExtraError, RunWriteError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, METRICS, open_metrics, parse_json

PROJECT = "gpuvec"


class Sink(Protocol):
    """An object that receives the metrics of a run."""

    def log(self, metrics: Mapping[str, float]) -> None:
        """Receives the metrics of an iteration.

        Args:
            metrics: {name: value}, with "iteration" and "steps"; nan where there is no number yet.
        """

    def close(self) -> None:
        """Ends the run; `log` is not called again."""


class JsonLines:
    """Writes a line of JSON for each iteration to metrics.jsonl, with null where there is no number.

    Args:
        folder: the run folder.
        iteration: the iteration after which the run continues; later lines are removed.

    Raises:
        CheckpointError: the file contains other lines.
        RunWriteError: the file cannot be written.
    """

    def __init__(self, folder: RunFolder, iteration: int = 0) -> None:
        lines = read_metric_lines(folder, iteration)
        self._folder = folder
        with folder.open_replacement(METRICS, keep_open=True) as file:
            file.write(b"".join(lines))
        self._file = file

    def log(self, metrics: Mapping[str, float]) -> None:
        """Appends a line.

        Args:
            metrics: {name: value}, with "iteration" and "steps"; nan where there is no number yet.

        Raises:
            RunWriteError: the file cannot be written.
        """
        numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        try:
            self._file.write(json.dumps(numbers).encode() + b"\n")
        except OSError as error:
            raise RunWriteError(f"{self._folder.path / METRICS} cannot be written: {error.strerror or error}.") from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Writes event files to <run>/tensorboard, with metrics over environment steps.

    Args:
        folder: the path of the run folder.
        args: the settings.
        num_env_steps: the number of environment steps after which the run continues; 0 for a new run.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path, args: Mapping[str, Any], num_env_steps: int) -> None:
        writer_class = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer_class(str(folder / "tensorboard"), purge_step=num_env_steps + 1 if num_env_steps else None)
        self._writer.add_text("args", "\n".join(f"    {name} = {value!r}" for name, value in args.items()))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Adds a point to the curve of each metric.

        Args:
            metrics: {name: value}, with "iteration" and "steps"; nan where there is no number yet.
        """
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, int(metrics["steps"]))

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class Tracker:
    """Sends metrics to Weights & Biases or trackio, to a run of the project "gpuvec" that has the name of the run folder.

    The packages have the same interface. Their own settings, such as WANDB_MODE=offline, determine where they store a run and
    whether they use the network.

    After a run has begun, an error of the tracker, such as a network that is down, ends the tracking with a warning and not the
    training: metrics.jsonl has all numbers.

    Args:
        package: "wandb" or "trackio".
        folder: the path of the run folder.
        args: the settings.
        num_env_steps: the number of environment steps after which the run continues; 0 for a new run.

    Raises:
        MissingExtraError: the package is not installed.
        RunWriteError: the tracker cannot begin the run.
    """

    def __init__(self, package: str, folder: Path, args: Mapping[str, Any], num_env_steps: int) -> None:
        tracker = _import(package, package)
        wandb_options = {"dir": str(folder), "id": folder.name} if package == "wandb" else {}
        resume = "allow" if num_env_steps or package == "wandb" else "never"
        self._package, self._has_failed = package, False
        try:
            self._run = tracker.init(project=PROJECT, name=folder.name, config=dict(args), resume=resume, **wandb_options)
        except Exception as error:  # of any type: it is another package's
            raise RunWriteError(
                f"{package} cannot begin a run ({error}): correct its settings, as in `{package}`'s documentation, or leave "
                f"--log {package} out."
            ) from error

    def log(self, metrics: Mapping[str, float]) -> None:
        """Sends the metrics that are finite numbers.

        Args:
            metrics: {name: value}, with "iteration" and "steps"; nan where there is no number yet.
        """
        numbers = {k: v for k, v in metrics.items() if math.isfinite(v)}
        self._attempt(lambda: self._run.log(numbers, step=int(metrics["steps"])))

    def close(self) -> None:
        """Ends the run of the tracker."""
        self._attempt(self._run.finish)

    def _attempt(self, call: Callable[[], Any]) -> None:
        """Calls the tracker, unless it has failed before."""
        if self._has_failed:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001  # of any type: it is another package's, and must not end a training
            self._has_failed = True
            warnings.warn(f"no more metrics are sent to {self._package}: {error}", RuntimeWarning, stacklevel=3)


SINKS: dict[str, Callable[[Path, Mapping[str, Any], int], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": lambda folder, args, num_env_steps: Tracker("wandb", folder, args, num_env_steps),
    "trackio": lambda folder, args, num_env_steps: Tracker("trackio", folder, args, num_env_steps),
}
"""{name: function(folder, args, num_env_steps)} that creates a sink; the run continues after `num_env_steps`."""


def require_packages(names: Iterable[str]) -> None:
    """Checks that the packages of sinks are installed.

    Args:
        names: keys of `SINKS`.

    Raises:
        MissingExtraError: a package is not installed.
    """
    for name in names:
        _import("torch.utils.tensorboard" if name == "tensorboard" else name, name)


def read_metric_lines(folder: RunFolder, iteration: int) -> list[bytes]:
    """Reads the lines of metrics.jsonl up to an iteration. An incomplete last line is left out.

    Args:
        folder: the run folder.
        iteration: the last iteration whose line is read.

    Returns:
        The lines with their line breaks; none if there is no such file.

    Raises:
        CheckpointError: a line is not a JSON object with an "iteration".
    """
    lines = []
    try:
        file = open_metrics(folder)
    except FileNotFoundError:
        return []
    with file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_RECORD_BYTES), b""), 1):
            if not line.endswith(b"\n") and len(line) < MAX_RECORD_BYTES:
                break
            row = parse_json(line)
            if not isinstance(row, dict) or type(row.get("iteration")) not in (int, float):
                raise CheckpointError(
                    f"line {number} of {folder.path / METRICS} is not a JSON object with an iteration: correct the line, or "
                    "remove the file."
                )
            if row["iteration"] > iteration:
                break
            lines.append(line)
    return lines


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = "train" if package == "tensorboard" else package
        raise MissingExtraError(
            f"metrics cannot be sent to {package} ({error}). Install the extra: pip install 'gpuvec[{extra}]'."
        ) from error
