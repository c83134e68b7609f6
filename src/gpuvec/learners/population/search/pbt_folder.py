"""The folder of population-based training: that of a population, and two files more.

The files are `pbt.json`, what changes and how often, and `schedule.npz`, all changes so far.

Letters: P agents, V changes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.errors import CheckpointError
from gpuvec.learners.population.results.npz_content import to_npz
from gpuvec.learners.population.results.population_folder import load_population, save_population, write_population
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.search.population_based_training import PBTArgs, PBTResult, PBTSchedule
from gpuvec.learners.population.search.trials import parse_parameters
from gpuvec.learners.runs.content_checks import require_keys, require_mapping
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, PBT, parse_json, to_json

SCHEDULE = "schedule.npz"
OWN_SETTINGS = ("interval", "fraction", "factors")
"""The settings of population-based training besides those of the population."""


def save_pbt(runs: Path | str, args: PBTArgs, trained: PBTResult, num_best: int = 1) -> Path:
    """Writes the folder of a population whose settings changed, and returns its path.

    Args:
        runs: the folder in which the folder is created.
        args: the settings of the training.
        trained: its result.
        num_best: the number of the best agents that get a run folder.

    Raises:
        RunWriteError: a file cannot be written.
    """
    return save_population(runs, trained.result, num_best, _files(args, trained))


def write_pbt(folder: RunFolder, args: PBTArgs, trained: PBTResult, num_best: int = 1) -> None:
    """Writes the files of a training into its folder, in place of those that are there.

    Args:
        folder: the folder, which is locked.
        args, trained, num_best: as in `save_pbt`.

    Raises:
        RunWriteError: a file cannot be written.
    """
    write_population(folder, trained.result, num_best)
    for name, content in _files(args, trained).items():
        folder.write(name, content)


def _files(args: PBTArgs, trained: PBTResult) -> dict[str, bytes]:
    """Returns the contents of the files besides those of a population."""
    schedule = trained.schedule
    arrays: dict[str, Any] = {"iterations": schedule.iterations, "sources": schedule.sources}
    arrays |= {f"setting.{name}": x for name, x in schedule.settings.items()}
    own = {name: getattr(args, name) for name in OWN_SETTINGS}
    return {SCHEDULE: to_npz(arrays), PBT: to_json({"parameters": [list(each) for each in args.parameters], **own})}


def load_pbt(path: Path | str) -> tuple[PBTArgs, PBTResult]:
    """Reads the folder of a training, which anybody may have written: nothing in it is executed.

    Args:
        path: the path of the folder.

    Raises:
        FileNotFoundError: there is no such folder, or it is of something else.
        CheckpointError: a file is damaged.
    """
    saved = load_population(path)
    with RunFolder(path) as folder:
        record = parse_json(folder.read(PBT, MAX_RECORD_BYTES))
        try:
            values = require_mapping(record, PBT)
            require_keys(values, ("parameters", *OWN_SETTINGS), PBT, exact=True)
            parameters = parse_parameters(values["parameters"])
            interval, fraction, factors = (values[name] for name in OWN_SETTINGS)
            args = PBTArgs(saved.args.base, parameters, saved.args.num_agents, interval, fraction, tuple(factors))
        except (CheckpointError, ValueError, TypeError) as error:
            raise CheckpointError(f"{folder.path / PBT} is damaged: {error}") from error
        schedule = _read_schedule(folder, args)
    result = PopulationResult(saved.args, saved.history, saved.state, "")
    return args, PBTResult(result, schedule)


def _read_schedule(folder: RunFolder, args: PBTArgs) -> PBTSchedule:
    """Returns the changes in a folder; raises CheckpointError unless they have the shapes that the settings `args` imply."""
    name = folder.path / SCHEDULE
    with folder.open(SCHEDULE) as file:
        try:
            with np.load(file, allow_pickle=False) as saved:
                iterations, sources = saved["iterations"], saved["sources"]
                settings = {each.name: saved[f"setting.{each.name}"] for each in args.parameters}
        except (ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{name} is damaged: it has not the changes of a training ({error}).") from error
    changes, agents = len(iterations), args.num_agents
    shapes = [iterations.shape == (changes,), sources.shape == (changes, agents) or not changes]
    shapes += [x.shape == (changes + 1, agents) and x.dtype == np.float64 for x in settings.values()]
    integers = (iterations.dtype.kind, sources.dtype.kind) == ("i", "i")
    if not all(shapes) or not integers or (changes and not 0 <= sources.min() <= sources.max() < agents):
        raise CheckpointError(f"{name} is damaged: its arrays are not those of {agents:,} agents.")
    return PBTSchedule(iterations.astype(np.int64), sources.astype(np.int64).reshape(changes, agents), settings)
