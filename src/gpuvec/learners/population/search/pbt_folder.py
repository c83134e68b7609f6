"""The folder of population-based training: that of a population, whose file also has what changes, and all changes so far.

Letters: P agents, V changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.errors import CheckpointError
from gpuvec.learners.population.results.population_folder import FilePart, read_population
from gpuvec.learners.population.results.population_history import open_population
from gpuvec.learners.population.search.population_based_training import PBTArgs, PBTResult, PBTSchedule
from gpuvec.learners.population.search.trials import parse_parameters
from gpuvec.learners.population.state.agent_copies import changed_agents
from gpuvec.learners.runs.archives import NpzReader
from gpuvec.learners.runs.content_checks import require_keys, require_mapping
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import PBT

SCHEDULE = "schedule/"  # the beginning of the names of the arrays of the schedule
OWN_SETTINGS = ("interval", "fraction", "factors")
"""The settings of population-based training besides those of the population."""


def pbt_part(args: PBTArgs, trained: PBTResult) -> FilePart:
    """Returns what the file of a population has if its settings change.

    Args:
        args: the settings of the training.
        trained: how far it has come.
    """
    schedule = trained.schedule
    arrays: dict[str, Any] = {f"{SCHEDULE}iterations": schedule.iterations, f"{SCHEDULE}sources": schedule.sources}
    arrays |= {f"{SCHEDULE}setting.{name}": x for name, x in schedule.settings.items()}
    own = {name: getattr(args, name) for name in OWN_SETTINGS}
    return FilePart({PBT: {"parameters": [list(each) for each in args.parameters], **own}}, arrays)


def load_pbt(path: Path | str, trust: bool = False) -> tuple[PBTArgs, PBTResult]:
    """Reads the folder of a training, which anybody may have written: nothing in it is executed.

    Args:
        path: the path of the folder.
        trust: whether the modules that it names may be imported, which runs their code.

    Raises:
        FileNotFoundError: there is no such folder, or it is not that of a population.
        CheckpointError: the file is damaged, of another version, or names a module that is neither imported nor trusted.
    """
    with RunFolder(path) as folder, open_population(folder) as (reader, record):
        saved = read_population(reader, record, trust)
        try:
            values = require_mapping(record.get(PBT), PBT)
            require_keys(values, ("parameters", *OWN_SETTINGS), PBT, exact=True)
            parameters = parse_parameters(values["parameters"])
            interval, fraction, factors = (values[name] for name in OWN_SETTINGS)
            args = PBTArgs(saved.args.base, parameters, saved.args.num_agents, interval, fraction, tuple(factors))
        except (CheckpointError, ValueError, TypeError) as error:
            raise reader.error(str(error).rstrip(".")) from error
        if set(saved.args.settings) != {each.name for each in parameters} or saved.args.params:
            raise reader.error("other settings differ between its agents than those that change")
        schedule = _read_schedule(reader, args, len(saved.history.steps))
    for name, column in schedule.settings.items():
        if not np.array_equal(column[-1], saved.history.settings[name]):
            raise reader.error(f"its agents have other values of {name} than the last change gave them")
    return args, PBTResult(saved.result, schedule)


def _read_schedule(reader: NpzReader, args: PBTArgs, iteration: int) -> PBTSchedule:
    """Returns the changes until an iteration; raises CheckpointError unless the settings `args` allow them."""
    reader.require(f"{SCHEDULE}iterations", None, np.int64)
    changes, agents = (reader.specs[f"{SCHEDULE}iterations"][0] or (0,))[0], args.num_agents
    expected: dict[str, tuple[tuple[int, ...], Any]] = {
        "iterations": ((changes,), np.int64),
        "sources": ((changes, agents), np.int64),
    }
    expected |= {f"setting.{each.name}": ((changes + 1, agents), np.float64) for each in args.parameters}
    for name, (shape, dtype) in expected.items():
        reader.require(SCHEDULE + name, shape, dtype)
    arrays = reader.read_all(SCHEDULE, expected)
    iterations, sources = arrays["iterations"], arrays["sources"]
    expected_changes = min(iteration, args.base.iterations - 1) // args.interval
    if changes != expected_changes or not np.array_equal(iterations, args.interval * np.arange(1, changes + 1)):
        raise reader.error(f"its changes are not those of every {args.interval} iterations until {iteration:,}")
    if changes and not 0 <= sources.min() <= sources.max() < agents:
        raise reader.error(f"its changes have sources that are none of {agents:,} agents")
    settings = {each.name: arrays[f"setting.{each.name}"] for each in args.parameters}
    for name, _, low, high in args.parameters:
        if not ((settings[name] >= low) & (settings[name] <= high)).all():
            raise reader.error(f"its changes have values of {name} outside its range")
        for before, source, after in zip(settings[name], sources, settings[name][1:], strict=False):
            copies = changed_agents(source)
            possible = (before[source[copies]] * np.array(args.factors)[:, np.newaxis]).clip(low, high)
            own = np.array_equal(np.delete(after, copies), np.delete(before, copies))
            if not own or not (after[copies] == possible).any(0).all() or (source[source[copies]] != source[copies]).any():
                raise reader.error(f"its changes have values of {name} that do not follow from each other")
    return PBTSchedule(iterations, sources, settings)
