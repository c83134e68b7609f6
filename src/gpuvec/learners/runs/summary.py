"""What the run folders in a folder hold, as `gpuvec runs` lists them. Importing this imports no torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpuvec.errors import CheckpointError
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import METRICS, RECORD_LIMIT, RESULT, SETTINGS, parse_json

TAIL_BYTES = 1 << 16  # of metrics.jsonl, in which its last lines are


class RunSummary(NamedTuple):
    """One run."""

    path: Path
    env: str
    algorithm: str
    seed: str
    iteration: int  # done, 0 if none
    iterations: int  # in all, 0 if the settings do not tell
    mean_return: float  # of the evaluation at the end, else of the last episodes of the training; nan without any
    last_change: float  # of the last change of its metrics, in seconds since the epoch
    state: str  # complete, stopped, running or damaged


def summarize_runs(folder: Path) -> Iterator[RunSummary]:
    """Those of the run folders in `folder`, the newest last. Other files and folders are passed over.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}: `gpuvec train` makes runs in ./runs, or where --runs says.")
    found = []
    for path in folder.iterdir():
        with suppress(OSError, CheckpointError), RunFolder(path) as run:
            if SETTINGS in run.names():
                found.append(summarize_run(run))
    yield from sorted(found, key=lambda each: (each.last_change, each.path.name))


def summarize_run(run: RunFolder) -> RunSummary:
    """What the files of a run say; nothing of them is executed, and no checkpoint is read."""
    settings, result = (read_record(run, name) for name in (SETTINGS, RESULT))
    last = last_metrics(run)
    parts = run.path.name.split("__")  # <env>__<algorithm>__<seed>__<time>
    iteration = finite_number(last, "iteration")
    state = "running" if run.in_use() else "complete" if result else "stopped" if settings else "damaged"
    return RunSummary(
        path=run.path,
        env=str(settings.get("env", parts[0]))[:80],
        algorithm=parts[1] if len(parts) > 2 else "?",
        seed=str(settings.get("seed", "?"))[:20],
        iteration=0 if math.isnan(iteration) else int(iteration),
        iterations=total_iterations(settings),
        mean_return=finite_number(result, "mean_return") if result else finite_number(last, "return"),
        last_change=run.changed_at(METRICS if METRICS in run.names() else SETTINGS),
        state=state,
    )


def total_iterations(settings: dict[str, Any]) -> int:
    """Iterations in all; 0 if the settings do not tell."""
    total, envs, steps = (finite_number(settings, name) for name in ("total_steps", "num_envs", "num_steps"))
    return math.ceil(total / (envs * steps)) if min(total, envs, steps) >= 1 else 0


def read_record(run: RunFolder, name: str) -> dict[str, Any]:
    """The JSON object in a file; an empty one if there is none, or it is damaged."""
    try:
        found = parse_json(run.read(name, RECORD_LIMIT))
    except (FileNotFoundError, CheckpointError):
        return {}
    return found if isinstance(found, dict) else {}


def last_metrics(run: RunFolder) -> dict[str, Any]:
    """Of metrics.jsonl the last line that is whole; a number that it lacks is taken from lines before it."""
    metrics: dict[str, Any] = {}
    try:
        file = run.open(METRICS)
    except (FileNotFoundError, CheckpointError):
        return {}
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL_BYTES))
        for line in file.read(TAIL_BYTES).splitlines(keepends=True):
            row = parse_json(line) if line.endswith(b"\n") else None
            if isinstance(row, dict):
                metrics |= {name: value for name, value in row.items() if value is not None}
    return metrics


def finite_number(values: dict[str, Any], name: str) -> float:
    """The finite number of that name; nan if there is none."""
    value = values.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
    return float(value) if is_number else math.nan  # type: ignore[arg-type]  # it is one
