"""Summaries of run folders for `gpuvec runs`. This module does not import torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpuvec.errors import CheckpointError
from gpuvec.learners.population.results.population_history import read_population_record
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, METRICS, POPULATION, RESULT, SETTINGS, STOPPED, SWEEP, parse_json

TAIL_BYTES = 1 << 16  # the number of bytes at the end of metrics.jsonl in which the last metrics are searched


class RunSummary(NamedTuple):
    """The state and the results of a run. Text is shortened, because anybody may have written the files."""

    path: Path
    env: str
    algorithm: str
    seed: str
    iteration: int  # the last one that is complete, 0 if there is none
    num_iterations: int  # of the whole training, 0 if the settings do not say
    mean_return: float  # of the evaluation at the end, or else of the last episodes in training; nan if there are none
    modification_time: float  # of the metrics, in seconds since the epoch
    state: str  # "complete", "stopped", "running" or "damaged"


def summarize_runs(folder: Path) -> Iterator[RunSummary]:
    """Summarises the run folders in a folder, the newest last. Other files and folders are skipped.

    Args:
        folder: the path of the folder that contains run folders.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}: `gpuvec train` creates runs in ./runs, or in the folder of --runs."
        )
    summaries = []
    for path in folder.iterdir():
        with suppress(OSError, CheckpointError), RunFolder(path) as run:
            names = run.file_names()
            if SETTINGS in names:
                summaries.append(summarize_run(run))
            elif POPULATION in names:
                summaries.append(summarize_population(run))
            elif SWEEP in names:
                summaries.append(summarize_sweep(run))
    yield from sorted(summaries, key=lambda summary: (summary.modification_time, summary.path.name))


def summarize_run(run: RunFolder) -> RunSummary:
    """Summarises a run from its JSON files and the state of its lock. No checkpoint is read.

    Args:
        run: the run folder.
    """
    settings, result = (read_record(run, name) for name in (SETTINGS, RESULT))
    metrics = last_metrics(run)
    iteration = finite_number(metrics, "iteration")
    is_complete = bool(result) and result.get("ended_by") != STOPPED
    state = "running" if run.is_locked() else "complete" if is_complete else "stopped" if settings else "damaged"
    return RunSummary(
        path=run.path,
        env=str(settings.get("env", run.path.name.split("__")[0]))[:80],
        algorithm=algorithm_of(settings, run.path),
        seed=str(settings.get("seed", "?"))[:20],
        iteration=0 if math.isnan(iteration) else int(iteration),
        num_iterations=total_iterations(settings),
        mean_return=finite_number(*((result, "mean_return") if "mean_return" in result else (metrics, "last_return"))),
        modification_time=run.modification_time(METRICS if METRICS in run.file_names() else SETTINGS),
        state=state,
    )


def summarize_population(run: RunFolder) -> RunSummary:
    """Summarises the folder of a population. In place of a seed it has the number of agents, whose returns are averaged.

    Args:
        run: the folder.
    """
    try:
        record = read_population_record(run)
    except CheckpointError:
        record = {}
    base = record.get("base")
    settings = base if isinstance(base, dict) else {}
    iteration, num_agents = finite_number(record, "iteration"), finite_number(record, "num_agents")
    num_iterations = total_iterations(settings)
    is_complete = 0 < num_iterations <= iteration
    return RunSummary(
        path=run.path,
        env=str(settings.get("env", "?"))[:80],
        algorithm=algorithm_in_name(run.path),
        seed="?" if math.isnan(num_agents) else f"{num_agents:.0f} agents",
        iteration=0 if math.isnan(iteration) else int(iteration),
        num_iterations=num_iterations,
        mean_return=finite_number(record, "mean_return"),
        modification_time=run.modification_time(POPULATION),
        state="running" if run.is_locked() else "complete" if is_complete else "stopped" if settings else "damaged",
    )


def summarize_sweep(run: RunFolder) -> RunSummary:
    """Summarises the folder of a search: its iterations are its parts, its return that of the best settings on fresh seeds.

    Args:
        run: the folder.
    """
    record = read_record(run, SWEEP)
    base, parts, confirmations = (record.get(name) for name in ("base", "parts", "confirmations"))
    settings = base if isinstance(base, dict) else {}
    best = confirmations[0] if isinstance(confirmations, list) and confirmations else {}
    finished, num_trials = finite_number(record, "finished_parts"), finite_number(record, "num_trials")
    return RunSummary(
        path=run.path,
        env=str(settings.get("env", "?"))[:80],
        algorithm=algorithm_in_name(run.path),
        seed="?" if math.isnan(num_trials) else f"{num_trials:.0f} trials",
        iteration=0 if math.isnan(finished) else int(finished),
        num_iterations=len(parts) + 1 if isinstance(parts, list) else 0,
        mean_return=finite_number(best, "interquartile_mean") if isinstance(best, dict) else math.nan,
        modification_time=run.modification_time(SWEEP),
        state="running" if run.is_locked() else "complete" if best else "stopped" if settings else "damaged",
    )


def algorithm_of(settings: dict[str, Any], path: Path) -> str:
    """The algorithm of a run, which is in its settings or in the name of its folder.

    Args:
        settings: the content of args.json.
        path: the path of the folder.
    """
    algorithm = settings.get("algorithm")
    return algorithm.rpartition(":")[2][:20] if isinstance(algorithm, str) else algorithm_in_name(path)


def algorithm_in_name(path: Path) -> str:
    """The algorithm in the name of a run folder, <env>__<algorithm>__<seed>__<time>; "?" if the name has another form.

    Args:
        path: the path of the folder.
    """
    parts = path.name.split("__")
    return parts[1] if len(parts) > 2 else "?"


def total_iterations(settings: dict[str, Any]) -> int:
    """The number of iterations of the whole training, 0 if the settings do not say.

    Args:
        settings: the content of args.json.
    """
    numbers = [finite_number(settings, name) for name in ("total_steps", "num_envs", "num_steps")]
    total_steps, num_envs, num_steps = numbers
    return math.ceil(total_steps / (num_envs * num_steps)) if all(number >= 1 for number in numbers) else 0


def read_record(run: RunFolder, name: str) -> dict[str, Any]:
    """The JSON object in a file, or an empty one if there is no such file or it is damaged.

    Args:
        run: the run folder.
        name: the name of the file.
    """
    try:
        record = parse_json(run.read(name, MAX_RECORD_BYTES))
    except (FileNotFoundError, CheckpointError):
        return {}
    return record if isinstance(record, dict) else {}


def last_metrics(run: RunFolder) -> dict[str, Any]:
    """The last complete line of metrics.jsonl. Numbers that it lacks are those of the lines before it.

    Args:
        run: the run folder.
    """
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
    """Returns a number of a JSON object as a float, or nan if there is none or it is not finite.

    Args:
        values: the JSON object.
        name: the name of the number.
    """
    value = values.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
    return float(value) if is_number else math.nan  # type: ignore[arg-type]  # it is one
