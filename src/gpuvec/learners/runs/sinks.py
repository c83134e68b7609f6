"""Where metrics go: lines of JSON in the run folder, and TensorBoard, Weights & Biases or trackio if asked for.

A sink of one's own has the two methods of `Sink`, and is called from `on_iteration` of `training.train`.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpuvec.errors import CheckpointError, MissingExtraError, RunWriteError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import METRICS, parse_json

PROJECT = "gpuvec"


class Sink(Protocol):
    """What takes the metrics of a run."""

    def log(self, metrics: Mapping[str, float]) -> None:
        """Takes those of an iteration, with "iteration" and "steps" among them; nan where there is no number yet."""

    def close(self) -> None:
        """Nothing will follow."""


class JsonLines:
    """A line for each iteration in metrics.jsonl, null where there is no number.

    Args:
        folder: the run folder.
        iteration: after which the run continues; later lines are removed.

    Raises:
        CheckpointError: the file holds something else than such lines.
        RunWriteError: the file cannot be written.
    """

    def __init__(self, folder: RunFolder, iteration: int = 0) -> None:
        lines = read_metric_lines(folder, iteration)
        self._folder = folder
        with folder.replacing(METRICS, keep_open=True) as file:
            file.write(b"".join(lines))
        self._file = file

    def log(self, metrics: Mapping[str, float]) -> None:
        """Adds a line."""
        numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        try:
            self._file.write(json.dumps(numbers).encode() + b"\n")
        except OSError as error:
            raise RunWriteError(f"{self._folder.path / METRICS} cannot be written: {error.strerror or error}.") from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Event files in <run>/tensorboard, by environment steps."""

    def __init__(self, folder: Path, args: Mapping[str, Any], steps: int) -> None:
        writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(folder / "tensorboard"), purge_step=steps + 1 if steps else None)
        self._writer.add_text("args", "\n".join(f"    {name} = {value!r}" for name, value in args.items()))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, int(metrics["steps"]))

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class Tracker:
    """Weights & Biases, or trackio, which has the same functions: a run of the project "gpuvec", named as the folder is.

    Where they keep it, and whether they reach the network, is their own to configure: WANDB_MODE=offline for one.
    """

    def __init__(self, package: str, folder: Path, args: Mapping[str, Any], steps: int) -> None:
        tracker = _import(package, package)
        more = {"dir": str(folder), "id": folder.name} if package == "wandb" else {}
        resume = "allow" if steps or package == "wandb" else "never"
        self._run = tracker.init(project=PROJECT, name=folder.name, config=dict(args), resume=resume, **more)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Hands on those that are numbers."""
        self._run.log({k: v for k, v in metrics.items() if math.isfinite(v)}, step=int(metrics["steps"]))

    def close(self) -> None:
        """Ends the run there."""
        self._run.finish()


SINKS: dict[str, Callable[[Path, Mapping[str, Any], int], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": lambda folder, args, steps: Tracker("wandb", folder, args, steps),
    "trackio": lambda folder, args, steps: Tracker("trackio", folder, args, steps),
}
"""{name: sink(folder, args, steps)}, `steps` of the environment being behind it when a run goes on."""


def require_packages(names: Iterable[str]) -> None:
    """Raises MissingExtraError unless what these sinks need is installed."""
    for name in names:
        _import("torch.utils.tensorboard" if name == "tensorboard" else name, name)


def read_metric_lines(folder: RunFolder, iteration: int) -> list[bytes]:
    """The lines of metrics.jsonl up to that iteration; none without the file. A last one that was cut off is left out.

    Raises:
        CheckpointError: a line is not a JSON object with an "iteration".
    """
    lines = []
    try:
        file = folder.open(METRICS)
    except FileNotFoundError:
        return []
    with file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
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
        raise MissingExtraError(f"metrics cannot go to {package} ({error}): pip install {package}.") from error
