"""The agents of a population as runs that differ in their seeds, for comparisons and plots. This module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.population.results.population_history import PopulationHistory, read_population_history
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import RunHistory

MAX_CONFIGURATIONS = 40  # of a population, since each one is a row of a table


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
    columns = history.hyperparameters
    configurations = len(np.unique(np.stack(list(columns.values())), axis=1).T) if columns else 1
    if configurations > MAX_CONFIGURATIONS:
        raise ValueError(
            f"{run.path} has agents with {configurations:,} different settings of {', '.join(columns)}; at most "
            f"{MAX_CONFIGURATIONS} can be compared: `gpuvec plot` draws their returns by each setting."
        )
    is_stopped = history.stopped_at >= 0
    notes = (f"{run.path}: {is_stopped.sum()} agents were stopped, and are left out.",) if is_stopped.any() else ()
    shared = {name: value for name, value in base.items() if name != "algorithm"}
    return [
        _agent_run(run, history, shared, metric_name, int(k), notes) for k in np.flatnonzero(~is_stopped)
    ]  # fmt: skip


def _agent_run(
    run: RunFolder, history: PopulationHistory, shared: Mapping[str, Any], metric_name: str, k: int, notes: tuple[str, ...]
) -> RunHistory:
    """Returns agent `k` as a run."""
    steps, seconds = history.steps.astype(np.float64), history.seconds / history.num_agents
    columns = {name: history.metrics[name][:, k].astype(np.float64) for name in {metric_name, EVAL_RETURN}}
    columns |= {"iteration": np.arange(1.0, len(steps) + 1), "steps": steps, "seconds": seconds}
    columns["steps_per_second"] = np.diff(steps, prepend=0.0) / np.diff(seconds, prepend=0.0).clip(1e-12)
    columns["gpu_memory"] = np.full(len(steps), np.nan)
    own = {name: column[k].item() for name, column in history.settings.items()}
    params = shared.get("params")
    own_params = {name: column[k].item() for name, column in history.params.items()}
    settings = {**shared, **own, "params": {**(params if isinstance(params, dict) else {}), **own_params}}
    return RunHistory(
        path=run.path / f"agent {k}", env=str(shared.get("env", "?"))[:80], algorithm="ppo", seed=str(history.seeds[k]),
        settings=settings, columns=columns, selected=(metric_name,), evaluated_return=np.nan, notes=notes,
    )  # fmt: skip
