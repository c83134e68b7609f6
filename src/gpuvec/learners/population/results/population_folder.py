"""The folder of a population.

The files of the folder::

    runs/<env>__population__<seed>__<time>/
        population.json    the settings that all agents share, their number, and what trained them
        versions.json      packages, Python, platform, and the commit if gpuvec runs from a checkout
        population.npz     the numbers of all agents over the training, their seeds and the settings in which they differ
        population.pt      the state from which the training continues
        best-<rank>__ppo__<seed>/    the run folder of an agent: a checkpoint, its settings and its metrics
        lock               locked by the process that writes to the folder
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpuvec.errors import CheckpointError
from gpuvec.learners.algorithms import args_from_json, args_to_dict
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.results.population_history import (
    PopulationHistory,
    history_to_npz,
    read_population_history,
)
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.runs.checkpoint import load_tensors
from gpuvec.learners.runs.checkpoint_schema import require_tensors
from gpuvec.learners.runs.content_checks import require_keys, require_mapping, require_settings
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import POPULATION, POPULATION_HISTORY, POPULATION_STATE, VERSIONS, to_json
from gpuvec.learners.runs.run_writer import RunWriter, collect_versions, create_run_folder


def save_population(
    runs: Path | str, result: PopulationResult, num_best: int = 1, more: Mapping[str, bytes] | None = None
) -> Path:
    """Writes the folder of a population, and returns its path.

    Args:
        runs: the folder in which the folder is created.
        result: the result of the training.
        num_best: the number of the best agents that get a run folder.
        more: {name: content} of other files in the folder.

    Raises:
        RunWriteError: a file cannot be written.
    """
    path = create_run_folder(runs, result.args.base.env, "population", result.args.base.seed)
    with RunFolder(path) as folder:
        folder.lock()
        write_population(folder, result, num_best)
        for name, content in (more or {}).items():
            folder.write(name, content)
    return path


def write_population(folder: RunFolder, result: PopulationResult, num_best: int) -> None:
    """Writes the files of a population into its folder, in place of those that are there.

    Args:
        folder: the folder, which is locked.
        result: the result of the training.
        num_best: the number of the best agents that get a run folder.

    Raises:
        RunWriteError: a file cannot be written.
    """
    base = result.args.base
    folder.write(VERSIONS, to_json(collect_versions()))
    returns = result.history.final_returns()
    finite = returns[np.isfinite(returns)]
    record = {
        "base": args_to_dict(base), "num_agents": result.args.num_agents, "trained_by": result.path,
        "iteration": result.state["iteration"], "mean_return": float(finite.mean()) if len(finite) else None,
    }  # fmt: skip
    folder.write(POPULATION, to_json(record))
    folder.write(POPULATION_HISTORY, history_to_npz(result.history))
    with folder.open_replacement(POPULATION_STATE) as file:
        torch.save(dict(result.state), file)
    for old in folder.path.glob("best-*__ppo__*"):
        if not old.is_symlink():
            shutil.rmtree(old)
    for rank, k in enumerate(result.best(num_best), 1):
        save_agent(folder.path / f"best-{rank}__ppo__{result.args.seeds[k]}", result, k)


def save_agent(path: Path, result: PopulationResult, k: int) -> None:
    """Writes the run folder of an agent, which `gpuvec eval`, `watch`, `export`, `plot` and `resume` take.

    Args:
        path: the path of the folder, which is created, in place of one that is there.
        result: the result of the training.
        k: the number of the agent.

    Raises:
        RunWriteError: a file cannot be written.
    """
    if path.exists() and not path.is_symlink():
        shutil.rmtree(path)
    path.mkdir()
    folder = RunFolder(path)
    folder.write(VERSIONS, to_json(collect_versions()))
    with closing(RunWriter(folder, asdict(result.args.agent(k)))) as writer:
        for metrics in metrics_of_agent(result.history, k, result.args.base.steps_per_iteration):
            writer.log(metrics)
        writer.save(result.checkpoint(k))


def metrics_of_agent(history: PopulationHistory, k: int, steps_per_iteration: int) -> Iterator[dict[str, float]]:
    """Yields the metrics of an agent in each iteration, as those of a single training.

    Args:
        history: the numbers of all agents.
        k: the number of the agent.
        steps_per_iteration: environment steps of an agent in an iteration.
    """
    seconds_before = 0.0
    for i, (steps, seconds) in enumerate(zip(history.steps.tolist(), history.seconds.tolist(), strict=True)):
        progress = {"iteration": steps // steps_per_iteration, "steps": steps, "seconds": seconds}
        progress["steps_per_second"] = steps_per_iteration / max(seconds - seconds_before, 1e-9)
        seconds_before = seconds
        yield {**progress, **{name: float(column[i, k]) for name, column in history.metrics.items()}}


class SavedPopulation(NamedTuple):
    """What the folder of a population has."""

    args: PopulationArgs
    history: PopulationHistory
    state: dict[str, Any]


def load_population(path: Path | str) -> SavedPopulation:
    """Reads the folder of a population, which anybody may have written: nothing in it is executed.

    Args:
        path: the path of the folder.

    Raises:
        FileNotFoundError: there is no such folder, or it is not that of a population.
        CheckpointError: a file is damaged.
    """
    with RunFolder(path) as folder:
        base, history = read_population_history(folder)
        if base.get("algorithm") != "ppo":
            raise CheckpointError(f"{folder.path / POPULATION} is not of a population that learns by PPO.")
        with folder.open(POPULATION_STATE) as file:
            try:
                state = require_state(load_tensors(file))
                require_settings(base, "base")
                args = _population_args(base, history)
            except (CheckpointError, ValueError) as error:
                raise CheckpointError(f"{folder.path / POPULATION_STATE} cannot be used: {error}") from error
    return SavedPopulation(args, history, state)


def _population_args(base: dict[str, Any], history: PopulationHistory) -> PopulationArgs:
    args = args_from_json(base)
    assert isinstance(args, PPOArgs), "the algorithm is PPO"
    columns = ({name: column.tolist() for name, column in group.items()} for group in (history.settings, history.params))
    return PopulationArgs(args, history.num_agents, tuple(history.seeds.tolist()), *columns)


def require_state(state: object) -> dict[str, Any]:
    """Returns the same object if it has the parts of the state of a population.

    Args:
        state: what the file contained.

    Raises:
        CheckpointError: it is something else.
    """
    parts = require_mapping(state, "the state")
    require_keys(parts, ("tensors", "env", "iteration"), "", exact=True)
    require_tensors(require_mapping(parts["tensors"], "tensors"), "tensors")
    require_keys(parts["tensors"], ("stopped_at", "parameters"), "tensors", exact=False)
    require_keys(require_mapping(parts["env"], "env"), ("buffers", "seed"), "env", exact=True)
    require_tensors(require_mapping(parts["env"]["buffers"], "env.buffers"), "env.buffers")
    seeds, iteration = parts["env"]["seed"], parts["iteration"]
    if not isinstance(seeds, list) or not all(isinstance(seed, int) for seed in seeds):
        raise CheckpointError("env.seed must be a list of integers.")
    if not isinstance(iteration, int) or iteration < 0:
        raise CheckpointError("iteration must be an integer of at least 0.")
    return dict(parts)
