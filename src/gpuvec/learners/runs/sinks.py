"""Sinks, to which the metrics of a run are sent: metrics.jsonl, TensorBoard, Weights & Biases and trackio.

Your own sink has the two methods of `Sink`. Call it in the `on_iteration` of `training.train`.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import struct
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from gpuvec.errors import CheckpointError, MissingExtraError, RunWriteError, install_command
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, METRICS, open_metrics, parse_json

PROJECT = "gpuvec"
TRACKERS = ("wandb", "trackio")
VIDEO = "video"  # its name beside those of metrics


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

    video_suffix = ".gif"  # a browser plays it among TensorBoard's images

    def __init__(self, folder: Path, args: Mapping[str, Any], num_env_steps: int) -> None:
        self._writer = _import("tensorboard").SummaryWriter(
            str(folder / "tensorboard"), purge_step=num_env_steps + 1 if num_env_steps else None
        )
        self._writer.add_text("args", "\n".join(f"    {name} = {value!r}" for name, value in args.items()))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Adds a point to the curve of each metric.

        Args:
            metrics: {name: value}, with "iteration" and "steps"; nan where there is no number yet.
        """
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, int(metrics["steps"]))

    def log_video(self, path: Path, num_env_steps: int) -> None:
        """Adds a GIF to the images.

        Args:
            path: that of the file.
            num_env_steps: the number of environment steps after which the policy was as the video shows it.
        """
        # `add_video` of PyTorch encodes by moviepy 1, and with version 2 writes an empty picture.
        from tensorboard.compat.proto.summary_pb2 import Summary

        gif = path.read_bytes()
        width, height = struct.unpack("<HH", gif[6:10])
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=VIDEO, image=image)]), num_env_steps)

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class Tracker:
    """Sends metrics to a run of Weights & Biases or trackio.

    The packages have the same interface. Their own settings, such as WANDB_MODE=offline, determine where they store a run and
    whether they use the network.

    After a run has begun, an error of the tracker, such as a network that is down, ends the tracking with a warning and not the
    training: metrics.jsonl has all numbers.

    Args:
        package: "wandb" or "trackio".
        folder: the path of the run folder.
        args: the settings.
        num_env_steps: the number of environment steps after which the run continues; 0 for a new run.
        tracking: the project and the name of the run.

    Raises:
        MissingExtraError: the package is not installed.
        RunWriteError: the tracker cannot begin the run.
    """

    video_suffix = ".mp4"

    def __init__(self, package: str, folder: Path, args: Mapping[str, Any], num_env_steps: int, tracking: Tracking) -> None:
        self._tracker, self._package, self._step, self._has_failed = _import(package), package, num_env_steps, False
        settings = os.environ if package == "wandb" else {}  # which arguments of `init` would overrule
        options: dict[str, Any] = {
            "project": tracking.wandb_project or settings.get("WANDB_PROJECT") or PROJECT,
            "name": tracking.wandb_name or settings.get("WANDB_NAME") or folder.name,
            "resume": "allow" if num_env_steps else "never",
        }
        if package == "wandb":
            options |= {"dir": str(folder), "id": folder.name, "entity": tracking.wandb_entity or None, "resume": "allow"}
        try:
            self._run = self._tracker.init(config=dict(args), **options)
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
        numbers, self._step = {k: v for k, v in metrics.items() if math.isfinite(v)}, int(metrics["steps"])
        self._attempt(lambda: self._run.log(numbers, step=self._step))

    def log_video(self, path: Path, num_env_steps: int) -> None:
        """Sends an MP4, with the newest metrics: trackers take no points of the past.

        Args:
            path: that of the file.
            num_env_steps: the number of environment steps after which the policy was as the video shows it.
        """
        caption, step = f"after {num_env_steps:,} steps", self._step
        self._attempt(lambda: self._run.log({VIDEO: self._tracker.Video(str(path), caption=caption)}, step=step))
        self._step += 1  # of the next video if it comes before other metrics, since a step has one value of a name

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


@dataclass(frozen=True)
class Tracking:
    """Where the metrics of a training are sent, and whether it has videos."""

    log: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics are sent, besides the file metrics.jsonl in the run folder."""
    capture_video: bool = False
    """Record a video of the policy with each live replay, or once a minute without --watch. It is a file of the run folder, and
    is sent to where --log says. It needs the extra `video`, or `render` for TensorBoard alone."""
    wandb_project: str = ""
    """The project at W&B or trackio; by default gpuvec, or for W&B that of WANDB_PROJECT."""
    wandb_entity: str = ""
    """The user or the team at W&B; by default that of its settings."""
    wandb_name: str = ""
    """The name of the run at W&B or trackio; by default that of the run folder, or for W&B that of WANDB_NAME."""

    @property
    def video_suffixes(self) -> tuple[str, ...]:
        """The kinds of files of a video: a GIF for TensorBoard, and an MP4 for W&B and trackio, and where nothing is sent."""
        suffixes = {TensorBoard.video_suffix if name == "tensorboard" else Tracker.video_suffix for name in self.log}
        return tuple(sorted(suffixes or {Tracker.video_suffix})) if self.capture_video else ()

    def require_packages(self) -> None:
        """Checks that the packages are installed to which metrics are sent.

        Raises:
            MissingExtraError: a package is not installed.
            ValueError: an option is for a package to which nothing is sent.
        """
        for name in self.log:
            _import(name)
        for option, packages in (("project", TRACKERS), ("entity", ("wandb",)), ("name", TRACKERS)):
            if getattr(self, f"wandb_{option}") and not set(packages) & set(self.log):
                raise ValueError(f"--wandb-{option} is for --log {' or '.join(packages)}, which was not given.")

    def open(self, name: str, folder: Path, args: Mapping[str, Any], num_env_steps: int) -> TensorBoard | Tracker:
        """Begins or continues a run at one of the places to which metrics are sent.

        Args:
            name: one of `log`.
            folder: the path of the run folder.
            args: the settings.
            num_env_steps: the number of environment steps after which the run continues; 0 for a new run.

        Raises:
            MissingExtraError: the package is not installed.
            RunWriteError: the tracker cannot begin the run.
        """
        if name == "tensorboard":
            return TensorBoard(folder, args, num_env_steps)
        return Tracker(name, folder, args, num_env_steps, self)


NO_TRACKING = Tracking()


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


def _import(package: str) -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard" if package == "tensorboard" else package)
    except ImportError as error:
        extra = "train" if package == "tensorboard" else package
        raise MissingExtraError(
            f"metrics cannot be sent to {package} ({error}). Install the extra: {install_command(extra)}."
        ) from error
