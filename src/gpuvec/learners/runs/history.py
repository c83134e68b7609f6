"""What run folders contain, for lists, plots and comparisons. This module does not import torch.

A run is a training or an agent of a population: runs that differ in their seeds. Files may be incomplete, because a training
writes them at this moment, or damaged: what can be read is returned, with notes about the rest.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.metric_names import EVAL_RETURN, PROGRESS_METRICS, is_of_policy
from gpuvec.learners.population.results.population_history import read_population_history, read_population_record
from gpuvec.learners.runs import records
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import METRICS, POPULATION, RESULT, SETTINGS, STOPPED, SWEEP, finite_number, read_record

FloatArray = NDArray[np.float64]
MAX_COLUMNS = 64  # those of the progress, and one for each role
MAX_CONFIGURATIONS = 40  # of a population, since each one is a row of a table
TAIL_BYTES = 1 << 16  # the number of bytes at the end of metrics.jsonl in which the last metrics are searched


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


def read_histories(paths: Iterable[Path], metric_name: str) -> tuple[list[RunHistory], list[str]]:
    """Reads the histories of runs; those that cannot be read are left out.

    Args:
        paths: run folders, folders of populations, whose agents are a run each, or folders that contain such folders.
        metric_name: as in `read_history`.

    Returns:
        The histories, and messages about what was left out.
    """

    def is_run(path: Path) -> bool:
        return (path / SETTINGS).is_file() or (path / POPULATION).is_file()

    histories, messages, unique_paths = list[RunHistory](), list[str](), dict[Path, Path]()
    for folder in paths:
        inside = sorted(filter(is_run, folder.iterdir())) if folder.is_dir() and not is_run(folder) else []
        # The same folder may be named twice, such as by `runs runs/first`.
        unique_paths |= {path.resolve(): path for path in inside or [folder]}
    for path in unique_paths.values():
        try:
            with RunFolder(path) as run:
                is_population = POPULATION in run.file_names()
                runs = read_agent_runs(run, metric_name) if is_population else [read_history(run, metric_name)]
        except (OSError, ValueError) as error:
            messages.append(f"{error} It is left out.")
            continue
        histories += runs
        messages += [note for history in runs for note in history.notes]
    return histories, list(dict.fromkeys(messages))


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

    def is_selected(name: str) -> bool:
        """Whether a name is the metric, or that of a role."""
        return name == metric_name or is_of_policy(name, metric_name)

    if SETTINGS not in run.file_names():
        raise CheckpointError(f"{run.path} is not a run folder: it has no {SETTINGS}.")
    settings = read_record(run, SETTINGS)
    if not settings:
        raise CheckpointError(f"{run.path / SETTINGS} is damaged: it is not a JSON object of settings.")
    path, names = run.path / METRICS, set[str]()
    columns: dict[str, list[float]] = {name: [] for name in PROGRESS_METRICS}
    num_rows, num_damaged, last_steps, is_truncated = 0, 0, 0.0, False
    try:
        file = records.open_metrics(run)
    except FileNotFoundError:
        raise CheckpointError(f"{run.path} has no {METRICS}: there are no metrics yet.") from None
    with file:
        while line := file.readline(records.MAX_RECORD_BYTES):
            if not line.endswith(b"\n"):
                is_truncated = True
                num_damaged += len(line) == records.MAX_RECORD_BYTES  # no line is as long, so this is another file
                break
            row = records.parse_json(line)
            steps = finite_number(row, "steps") if isinstance(row, dict) else math.nan
            if not steps > last_steps:
                num_damaged += 1
                continue
            last_steps = steps
            names.update(row)
            columns |= {
                name: [math.nan] * num_rows
                for name in row
                if name not in columns and (is_selected(name) or name == EVAL_RETURN)
            }
            for name, values in columns.items():
                values.append(finite_number(row, name))
            num_rows += 1
            if len(names) > records.MAX_METRIC_NAMES or len(columns) > MAX_COLUMNS:
                raise CheckpointError(
                    f"{path} is damaged: it has more than {records.MAX_METRIC_NAMES:,} names of metrics, or more than "
                    f"{MAX_COLUMNS} of {metric_name}."
                )
    if not num_rows:
        state = "every line is damaged" if num_damaged else "there are no metrics yet"
        raise CheckpointError(f"{path} has no complete line: {state}.")
    selected = tuple(filter(is_selected, columns))
    if not selected:
        raise ValueError(f"{run.path} has no metric {metric_name!r}; it has {', '.join(sorted(names)[:40])}.")
    notes = []
    if num_damaged:
        notes.append(f"{path}: {num_damaged} damaged {'line is' if num_damaged == 1 else 'lines are'} left out.")
    # While a training writes a line, its beginning may be on disk.
    if is_truncated and not run.is_locked():
        notes.append(f"{path} is truncated: its last line is incomplete, and left out.")
    return RunHistory(
        path=run.path, env=str(settings.get("env", "?"))[:80], algorithm=algorithm_of(settings, run.path),
        seed=str(settings.get("seed", "?"))[:20], settings=settings,
        columns={name: np.array(values, np.float64) for name, values in columns.items()}, selected=selected,
        evaluated_return=finite_number(read_record(run, RESULT), "mean_return"), notes=tuple(notes),
    )  # fmt: skip


def read_agent_runs(run: RunFolder, metric_name: str) -> list[RunHistory]:
    """Reads the agents of a population, each as a run with its own seed.

    The seconds of an agent are its part of the time, which all agents share. Agents that were stopped are left out.

    Args:
        run: the folder of the population.
        metric_name: the name of a metric of `METRICS`.

    Raises:
        CheckpointError: a file is damaged.
        ValueError: there is no such metric, or agents have too many different settings to be compared.
    """
    base, history = read_population_history(run)
    if metric_name not in history.metrics:
        raise ValueError(f"{run.path} has no metric {metric_name!r}; it has {', '.join(history.metrics)}.")
    differing = history.hyperparameters
    configurations = len(np.unique(np.stack(list(differing.values())), axis=1).T) if differing else 1
    if configurations > MAX_CONFIGURATIONS:
        raise ValueError(
            f"{run.path} has agents with {configurations:,} different settings of {', '.join(differing)}; at most "
            f"{MAX_CONFIGURATIONS} can be compared: `gpuvec plot` draws their returns by each setting."
        )
    is_stopped = history.stopped_at >= 0
    notes = (f"{run.path}: {is_stopped.sum()} agents were stopped, and are left out.",) if is_stopped.any() else ()
    shared = {name: value for name, value in base.items() if name != "algorithm"}
    params = shared["params"] if isinstance(shared.get("params"), dict) else {}
    steps, seconds = history.steps.astype(np.float64), history.seconds / history.num_agents
    progress = {"iteration": np.arange(1.0, len(steps) + 1), "steps": steps, "seconds": seconds}
    progress["steps_per_second"] = np.diff(steps, prepend=0.0) / np.diff(seconds, prepend=0.0).clip(1e-12)
    progress["gpu_memory"] = np.full(len(steps), np.nan)
    runs = []
    for k in np.flatnonzero(~is_stopped):
        columns = {name: history.metrics[name][:, k].astype(np.float64) for name in {metric_name, EVAL_RETURN}}
        own, own_params = ({name: x[k].item() for name, x in each.items()} for each in (history.settings, history.params))
        runs.append(RunHistory(
            path=run.path / f"agent {k}", env=str(shared.get("env", "?"))[:80], algorithm="ppo", seed=str(history.seeds[k]),
            settings={**shared, **own, "params": {**params, **own_params}}, columns={**columns, **progress},
            selected=(metric_name,), evaluated_return=np.nan, notes=notes,
        ))  # fmt: skip
    return runs


class RunSummary(NamedTuple):
    """The state and the results of a run. Text is shortened, because anybody may have written the files."""

    path: Path
    env: str
    algorithm: str
    seed: str  # of a population its number of agents, and of a search that of its trials
    iteration: int  # the last one that is complete, 0 if there is none; of a search the number of parts
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
            if {SETTINGS, POPULATION, SWEEP} & set(run.file_names()):
                summaries.append(summarize_run(run))
    yield from sorted(summaries, key=lambda summary: (summary.modification_time, summary.path.name))


def summarize_run(run: RunFolder) -> RunSummary:
    """Summarises a run, a population or a search from its settings and results. No checkpoint is read.

    A population has the mean of its agents' returns. The iterations of a search are its parts, and its return is that of the
    best settings on fresh seeds.

    Args:
        run: the run folder.
    """
    names, env, algorithm = run.file_names(), "?", algorithm_of({}, run.path)
    if SETTINGS in names or not {POPULATION, SWEEP} & set(names):
        file = METRICS if METRICS in names else SETTINGS
        settings, result, metrics = read_record(run, SETTINGS), read_record(run, RESULT), last_metrics(run)
        env, algorithm, seed = (
            run.path.name.split("__")[0],
            algorithm_of(settings, run.path),
            str(settings.get("seed", "?"))[:20],
        )
        iteration, num_iterations = finite_number(metrics, "iteration"), total_iterations(settings)
        mean_return = finite_number(*((result, "mean_return") if "mean_return" in result else (metrics, "last_return")))
        is_complete = bool(result) and result.get("ended_by") != STOPPED
    elif POPULATION in names:
        file, record = POPULATION, dict[str, Any]()
        with suppress(CheckpointError):
            record = read_population_record(run)
        settings, num_agents = _mapping(record.get("base")), finite_number(record, "num_agents")
        seed = "?" if math.isnan(num_agents) else f"{num_agents:.0f} agents"
        iteration, num_iterations = finite_number(record, "iteration"), total_iterations(settings)
        mean_return, is_complete = finite_number(record, "mean_return"), 0 < num_iterations <= iteration
    else:
        file, record = SWEEP, read_record(run, SWEEP)
        settings, num_trials = _mapping(record.get("base")), finite_number(record, "num_trials")
        seed = "?" if math.isnan(num_trials) else f"{num_trials:.0f} trials"
        parts, confirmations = record.get("parts"), record.get("confirmations")
        best = confirmations[0] if isinstance(confirmations, list) and confirmations else {}
        iteration, num_iterations = finite_number(record, "finished_parts"), len(parts) + 1 if isinstance(parts, list) else 0
        mean_return, is_complete = finite_number(_mapping(best), "interquartile_mean"), bool(best)
    return RunSummary(
        path=run.path, env=str(settings.get("env", env))[:80], algorithm=algorithm, seed=seed,
        iteration=0 if math.isnan(iteration) else int(iteration), num_iterations=num_iterations, mean_return=mean_return,
        modification_time=run.modification_time(file),
        state="running" if run.is_locked() else "complete" if is_complete else "stopped" if settings else "damaged",
    )  # fmt: skip


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def algorithm_of(settings: dict[str, Any], path: Path) -> str:
    """The algorithm of a run: that of its settings, or that in the name of its folder, <env>__<algorithm>__<seed>__<time>.

    Args:
        settings: the content of args.json.
        path: the path of the folder.

    Returns:
        The name; "?" if the settings have none, and the name of the folder has another form.
    """
    algorithm, parts = settings.get("algorithm"), path.name.split("__")
    return algorithm.rpartition(":")[2][:20] if isinstance(algorithm, str) else parts[1] if len(parts) > 2 else "?"


def total_iterations(settings: dict[str, Any]) -> int:
    """The number of iterations of the whole training, 0 if the settings do not say.

    Args:
        settings: the content of args.json.
    """
    numbers = [finite_number(settings, name) for name in ("total_steps", "num_envs", "num_steps")]
    return math.ceil(numbers[0] / (numbers[1] * numbers[2])) if all(number >= 1 for number in numbers) else 0


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
            row = records.parse_json(line) if line.endswith(b"\n") else None
            if isinstance(row, dict):
                metrics |= {name: value for name, value in row.items() if value is not None}
    return metrics
