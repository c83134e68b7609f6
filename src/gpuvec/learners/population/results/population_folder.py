"""The folder of a population.

The files of the folder::

    runs/<env>__population__<seed>__<time>/
        population.npz     all of the population: its settings, the numbers of all agents over the training, and the state from
                           which it continues; of population-based training also what changes, and all changes so far
        versions.json      packages, Python, platform, and the commit if gpuvec runs from a checkout
        best-<rank>__ppo__<seed>/    the run folder of an agent: a checkpoint, its settings and its metrics
        lock               locked by the process that writes to the folder

What belongs together is one file, which is replaced as a whole while the population trains: a process that is killed leaves the
file before or the file after. See design/0062.

Letters: P agents, E environments of an agent.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuvec.errors import CheckpointError
from gpuvec.learners.algorithms import ALL, args_from_dict, args_to_dict
from gpuvec.learners.config.setting_types import with_tuples
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.population.population_args import AGENT_SETTINGS, PopulationArgs
from gpuvec.learners.population.results.population_history import (
    FORMAT,
    PopulationHistory,
    open_population,
    read_history,
)
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.state.state_arrays import state_from_arrays, state_to_arrays
from gpuvec.learners.runs.archives import NpzReader, archive_signature, write_npz, write_signed
from gpuvec.learners.runs.checkpoint import checkpoint_names, require_network_size
from gpuvec.learners.runs.content_checks import require_mapping, require_settings
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import POPULATION
from gpuvec.learners.runs.run_writer import RunWriter, new_run_folder
from gpuvec.learners.runs.trusted_code import import_code

STATE = "state/"  # the beginning of the names of the arrays of the state
AGENT_FOLDER = ".best.part"  # the run folder of an agent before it is complete
REMOVED_FOLDER = ".best.old"  # that of an agent which is being removed


class FilePart(NamedTuple):
    """What population-based training adds to the file of its population."""

    record: Mapping[str, Any]
    """{name: value} in the record."""
    arrays: Mapping[str, Any]
    """{name: array}."""


class PopulationWriter:
    """Writes the folder of a population, which it creates and locks before the first file.

    Args:
        runs: the folder in which the folder is created.
        folder: the folder of a population that continues, which is locked; None for a new one.
    """

    def __init__(self, runs: Path | str, folder: RunFolder | None = None) -> None:
        self._runs, self._folder = runs, folder
        self.best: list[Path] = []
        """The run folders that `finish` wrote, the best agent first."""
        self.preserved: list[Path] = []
        """Run folders of agents that `finish` kept, because somebody trains or trained them on."""

    def save(self, result: PopulationResult, part: FilePart | None = None) -> Path:
        """Writes the file of the population in place of the one before, and returns the path of the folder.

        Args:
            result: how far the training has come.
            part: what is added to the file; None for nothing.

        Raises:
            RunWriteError: the file cannot be written; the one before is unchanged.
        """
        base, history, (values, arrays) = result.args.base, result.history, part or FilePart({}, {})
        folder, returns = self._open(base), history.final_returns()
        finite = returns[np.isfinite(returns)]
        record = {
            "format": FORMAT, "base": args_to_dict(base), "num_agents": result.args.num_agents, "trained_by": result.path,
            "iteration": result.state["iteration"], "mean_return": float(finite.mean()) if len(finite) else None, **values,
        }  # fmt: skip
        content = {**history.arrays(), **state_to_arrays(result.state, STATE), **arrays}
        with folder.open_replacement(POPULATION) as file:
            write_signed(file, partial(write_npz, arrays=content, record=record), {ALL: record["base"]})
        return folder.path

    def finish(self, result: PopulationResult, num_best: int, part: FilePart | None = None) -> Path:
        """Writes the run folders of the best agents, removes those of others, and then writes the file of the population.

        A process that is killed in between leaves a population that continues from the file before, and writes them again. Run
        folders of agents that were trained on are kept.

        Args:
            result: the result of the training.
            num_best: the largest number of agents that get a run folder.
            part: as in `save`.

        Raises:
            RunWriteError: a file cannot be written.
        """
        path = self._open(result.args.base).path
        names = [(f"best-{rank}__ppo__{result.args.seeds[k]}", k) for rank, k in enumerate(result.best(num_best), 1)]
        self.best = [save_agent(path / name, result, k) for name, k in names]
        others = sorted(set(path.glob("best-*__ppo__*")) - set(self.best))
        self.preserved = [folder for folder in others if _is_trained_on(folder)]
        for folder in others:
            if folder not in self.preserved:
                _remove(folder)
        return self.save(result, part)

    def _open(self, base: PPOArgs) -> RunFolder:
        """Returns the folder, which exists from the first call on."""
        if self._folder is None:
            self._folder = new_run_folder(self._runs, base.env, "population", base.seed)
        return self._folder

    def close(self) -> None:
        """Unlocks and closes the folder."""
        if self._folder is not None:
            self._folder.close()


def save_population(runs: Path | str, result: PopulationResult, num_best: int = 1) -> Path:
    """Writes the folder of a population, and returns its path.

    Args:
        runs: the folder in which the folder is created.
        result: the result of the training.
        num_best: the number of the best agents that get a run folder.

    Raises:
        RunWriteError: a file cannot be written.
    """
    with closing(PopulationWriter(runs)) as writer:
        return writer.finish(result, num_best)


def save_agent(path: Path, result: PopulationResult, k: int) -> Path:
    """Writes the run folder of an agent, which `gpuvec eval`, `watch`, `export`, `plot` and `resume` take; returns its path.

    Args:
        path: the path of the folder, which is complete or not there, in place of one that is there. If that one was trained on,
            it is kept, and the folder is the first of <...>-2, <...>-3, ... of which this is not so.
        result: the result of the training.
        k: the number of the agent.

    Raises:
        RunWriteError: a file cannot be written.
    """
    part = path.with_name(AGENT_FOLDER)
    _remove(part)
    with closing(RunWriter.create(part, asdict(result.args.agent(k)))) as writer:
        for metrics in metrics_of_agent(result.history, k, result.args.base.steps_per_iteration):
            writer.log(metrics)
        writer.save(result.checkpoint(k))
    candidates = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    free_path = next(candidate for candidate in candidates if not _is_trained_on(candidate))
    _remove(free_path)
    part.rename(free_path)
    return free_path


def _is_trained_on(path: Path) -> bool:
    """Whether a training writes to the run folder of an agent, or has added a checkpoint to the one that `save_agent` wrote."""
    if path.is_symlink() or not path.is_dir():
        return False
    with RunFolder(path) as folder:
        return folder.is_locked() or len(checkpoint_names(folder)) > 1


def _remove(path: Path) -> None:
    """Removes a folder if there is one, of which a process that is killed leaves all or nothing; of a link the link alone."""
    removed = path.with_name(REMOVED_FOLDER)
    if removed.exists():
        shutil.rmtree(removed)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        path.rename(removed)
        shutil.rmtree(removed)


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


def load_population(path: Path | str, trust: bool = False) -> PopulationResult:
    """Reads how far a population has come from its folder, which anybody may have written: nothing in it is executed.

    Args:
        path: the path of the folder.
        trust: whether the modules that it names may be imported, which runs their code.

    Raises:
        FileNotFoundError: there is no such folder, or it is not that of a population.
        CheckpointError: the file is damaged, of another version, or names a module that is neither imported nor trusted.
    """
    with RunFolder(path) as folder, open_population(folder) as (reader, record):
        return read_population(reader, record, trust)


def read_population(reader: NpzReader, record: Mapping[str, Any], trust: bool) -> PopulationResult:
    """Reads a population, after checks that its parts fit together.

    Args:
        reader: the file, which anybody may have written.
        record: its record.
        trust: as for `load_population`.

    Raises:
        CheckpointError: the file is damaged, or names a module that is neither imported nor trusted.
    """
    import_code({ALL: record["base"]}, reader.name, trust, archive_signature(reader.file))
    history = read_history(reader, record["num_agents"])
    try:
        columns = ({name: column.tolist() for name, column in group.items()} for group in (history.settings, history.params))
        shared = population_base(record["base"])
        if shared.num_envs is None or shared.total_steps is None:
            raise CheckpointError("num_envs and total_steps must be numbers.")
        args = PopulationArgs(shared, history.num_agents, tuple(history.seeds.tolist()), *columns)
    except (CheckpointError, ValueError, TypeError) as error:
        raise reader.error(f"its settings cannot be used: {str(error).rstrip('.')}") from error
    state = read_state(reader, STATE, args, history)
    if state["iteration"] != len(history.steps) or record.get("iteration") != len(history.steps):
        raise reader.error(f"it has the numbers of {len(history.steps):,} iterations, and the state of another one")
    return PopulationResult(args, history, state, str(record.get("trained_by", ""))[:80])


def population_base(values: object) -> PPOArgs:
    """Returns the settings that all agents share, which JSON contained.

    Args:
        values: expected as `args_to_dict` returns it, with lists in place of tuples.

    Raises:
        CheckpointError: a setting is missing, unknown or out of its range.
    """
    settings = with_tuples(require_mapping(values, "base"))
    require_settings(settings, "base")
    args = args_from_dict(settings)
    if not isinstance(args, PPOArgs):
        raise CheckpointError("base is not of the algorithm ppo.")
    return args


def read_state(reader: NpzReader, prefix: str, args: PopulationArgs, history: PopulationHistory | None) -> dict[str, Any]:
    """Reads the state of a population, after checks that it fits its settings and its numbers.

    Shapes that depend on the environment are compared where the state is restored.

    Args:
        reader: the file, which anybody may have written.
        prefix: of the names of the arrays.
        args: the settings of the population.
        history: its numbers; None if there are none yet.

    Raises:
        CheckpointError: the file is damaged.
    """
    state = state_from_arrays(reader, prefix, args)
    tensors, iteration = state["tensors"], state["iteration"]
    weights = {name: x[0] for name, x in tensors["parameters"].items()}
    try:
        require_network_size(args.base, weights)
    except CheckpointError as error:
        raise reader.error(str(error).rstrip(".")) from error
    for name in AGENT_SETTINGS:
        if tensors["settings"][name].tolist() != list(args.column(name)):
            raise reader.error(f"the state has other values of {name} than the settings")
    if history is None:
        return state
    if not np.array_equal(history.steps, (iteration - np.arange(len(history.steps))[::-1]) * args.base.steps_per_iteration):
        raise reader.error(f"its numbers are not those of the iterations to {iteration:,}")
    for name in ("stopped_at", "fault"):
        if not np.array_equal(getattr(history, name), tensors[name].numpy()):
            raise reader.error(f"the state has another {name} than the numbers")
    return state
