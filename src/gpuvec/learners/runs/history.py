"""The metrics of a run folder over the training, for plots and comparisons. This module does not import torch.

The files may be incomplete, because a training writes them at this moment, or damaged: what can be read is returned, with
notes about the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.metric_names import EVAL_RETURN, PROGRESS_METRICS, is_of_policy
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import (
    MAX_METRIC_NAMES,
    MAX_RECORD_BYTES,
    METRICS,
    RESULT,
    SETTINGS,
    open_metrics,
    parse_json,
)
from gpuvec.learners.runs.summary import algorithm_of, finite_number, read_record

FloatArray = NDArray[np.float64]
MAX_COLUMNS = 64  # those of the progress, and one for each role


class RunHistory(NamedTuple):
    """The settings and the metrics of a run."""

    path: Path
    env: str
    algorithm: str
    seed: str
    settings: dict[str, Any]
    columns: dict[str, FloatArray]
    """{name: (N,), one number for each iteration}, nan where there is none; "steps" ascends."""
    selected: tuple[str, ...]
    """The names of the columns of the metric: one, or one for each role."""
    evaluated_return: float
    """The mean return of the evaluation at the end; nan if there was none."""
    notes: tuple[str, ...]
    """What of the files was left out."""


def read_history(run: RunFolder, metric_name: str) -> RunHistory:
    """Reads the settings and one metric of a run.

    Args:
        run: the run folder.
        metric_name: the name of a metric. "return" is that of the policy, or of each role, such as "wolves/return"; a whole
            name, such as "wolves/return" or "metrics/grass", is that metric alone.

    Raises:
        CheckpointError: the files are missing or damaged, or have no metrics yet.
        ValueError: there is no such metric.
    """
    if SETTINGS not in run.file_names():
        raise CheckpointError(f"{run.path} is not a run folder: it has no {SETTINGS}.")
    settings = read_record(run, SETTINGS)
    if not settings:
        raise CheckpointError(f"{run.path / SETTINGS} is damaged: it is not a JSON object of settings.")
    try:
        file = open_metrics(run)
    except FileNotFoundError:
        raise CheckpointError(f"{run.path} has no {METRICS}: there are no metrics yet.") from None
    with file:
        reader = _MetricReader(metric_name)
        reader.read(file)
    if reader.is_wide:
        raise CheckpointError(
            f"{run.path / METRICS} is damaged: it has more than {MAX_METRIC_NAMES:,} names of metrics, or more than "
            f"{MAX_COLUMNS} of {metric_name}."
        )
    if not reader.num_rows:
        state = "every line is damaged" if reader.num_damaged else "there are no metrics yet"
        raise CheckpointError(f"{run.path / METRICS} has no complete line: {state}.")
    selected = tuple(name for name in reader.columns if reader.is_selected(name))
    if not selected:
        names = ", ".join(sorted(reader.names)[:40])
        raise ValueError(f"{run.path} has no metric {metric_name!r}; it has {names}.")
    return RunHistory(
        path=run.path,
        env=str(settings.get("env", "?"))[:80],
        algorithm=algorithm_of(settings, run.path),
        seed=str(settings.get("seed", "?"))[:20],
        settings=settings,
        columns={name: np.array(values, np.float64) for name, values in reader.columns.items()},
        selected=selected,
        evaluated_return=finite_number(read_record(run, RESULT), "mean_return"),
        notes=tuple(_notes(run, reader)),
    )


def _notes(run: RunFolder, reader: _MetricReader) -> Iterable[str]:
    """Describes what of metrics.jsonl was left out."""
    if reader.num_damaged:
        lines = "line is" if reader.num_damaged == 1 else "lines are"
        yield f"{run.path / METRICS}: {reader.num_damaged} damaged {lines} left out."
    # While a training writes a line, its beginning may be on disk.
    if reader.is_truncated and not run.is_locked():
        yield f"{run.path / METRICS} is truncated: its last line is incomplete, and left out."


class _MetricReader:
    """Collects the columns of a metric, of the return in evaluations and of the progress from the lines of metrics.jsonl."""

    def __init__(self, metric_name: str) -> None:
        self._metric = metric_name
        self.columns: dict[str, list[float]] = {name: [] for name in PROGRESS_METRICS}
        self.names: set[str] = set()
        self.num_rows = self.num_damaged = 0
        self.is_truncated = False

    def is_selected(self, name: str) -> bool:
        """Whether `name` is the metric, or that of a role."""
        return name == self._metric or is_of_policy(name, self._metric)

    @property
    def is_wide(self) -> bool:
        """Whether there are more names than a training has."""
        return len(self.names) > MAX_METRIC_NAMES or len(self.columns) > MAX_COLUMNS

    def read(self, file: IO[bytes]) -> None:
        """Reads the lines of a file, until one is incomplete or there are too many names."""
        last_steps = 0.0
        while not self.is_wide and (line := file.readline(MAX_RECORD_BYTES)):
            if not line.endswith(b"\n"):
                self.is_truncated = True
                if len(line) == MAX_RECORD_BYTES:  # no line is as long, so this is another file
                    self.num_damaged += 1
                return
            row = parse_json(line)
            steps = finite_number(row, "steps") if isinstance(row, dict) else math.nan
            if not steps > last_steps:
                self.num_damaged += 1
                continue
            last_steps = steps
            self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        self.names.update(row)
        for name in row:
            if name not in self.columns and (self.is_selected(name) or name == EVAL_RETURN):
                self.columns[name] = [math.nan] * self.num_rows
        for name, values in self.columns.items():
            values.append(finite_number(row, name))
        self.num_rows += 1
