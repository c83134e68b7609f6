"""The folder of a search, and that of population-based training.

The files of the folder of a search::

    runs/<env>__sweep__<seed>__<time>/
        sweep.json       the settings of the search, the best settings, and the confirmations
        versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
        trials.npz       the settings, the score and the last part of each trial
        trials.png       the scores by each setting; only where matplotlib is installed
        best__ppo__<seed>/    the run folder of the best agent of the best trial

Population-based training writes the folder of a population, with `schedule.npz`: the changes of its settings.

Letters: N trials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.population.results.npz_content import to_npz
from gpuvec.learners.population.results.population_folder import save_agent, save_population
from gpuvec.learners.population.search.population_based_training import PBTResult
from gpuvec.learners.population.search.sweep import SweepResult
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import VERSIONS, to_json
from gpuvec.learners.runs.run_writer import collect_versions, create_run_folder

SWEEP, TRIALS, TRIALS_PICTURE, SCHEDULE = "sweep.json", "trials.npz", "trials.png", "schedule.npz"


def save_sweep(runs: Path | str, result: SweepResult, picture: bytes | None = None) -> Path:
    """Writes the folder of a search, and returns its path.

    Args:
        runs: the folder in which the folder is created.
        result: the result of the search.
        picture: a PNG file of the trials; None for none.

    Raises:
        RunWriteError: a file cannot be written.
    """
    base = result.confirmed.args.base
    path = create_run_folder(runs, base.env, "sweep", base.seed)
    with RunFolder(path) as folder:
        folder.lock()
        folder.write(VERSIONS, to_json(collect_versions()))
        folder.write(SWEEP, to_json(sweep_record(result)))
        folder.write(TRIALS, to_npz({**result.values, "score": result.scores, "part": result.rungs}))
        if picture is not None:
            folder.write(TRIALS_PICTURE, picture)
    best = result.confirmations[0]
    first = result.confirmed_trials.index(best.trial) * len(best.returns)
    agent = first + int(np.argmax(np.nan_to_num(best.returns, nan=-np.inf)))
    if np.isfinite(best.estimate.value):
        save_agent(path / f"best__ppo__{result.confirmed.args.seeds[agent]}", result.confirmed, agent)
    return path


def sweep_record(result: SweepResult) -> dict[str, Any]:
    """Returns the content of sweep.json: numbers, text and their containers, null in place of numbers that are not finite.

    Args:
        result: the result of the search.
    """
    args = result.args
    confirmations = [
        {
            "trial": each.trial, "settings": {name: float(column[each.trial]) for name, column in result.values.items()},
            "score": _finite(result.scores[each.trial]), "returns": [_finite(value) for value in each.returns],
            "interquartile_mean": _finite(each.estimate.value), "low": _finite(each.estimate.low),
            "high": _finite(each.estimate.high),
        }
        for each in result.confirmations
    ]  # fmt: skip
    return {
        "base": args_to_dict(result.confirmed.args.base), "parameters": [list(each) for each in args.parameters],
        "num_trials": args.num_trials, "num_seeds": args.num_seeds, "sampler": args.sampler, "parts": args.rungs,
        "best": result.best, "confirmations": confirmations,
    }  # fmt: skip


def save_pbt(runs: Path | str, result: PBTResult, num_best: int = 1) -> Path:
    """Writes the folder of a population whose settings changed, and returns its path.

    Args:
        runs: the folder in which the folder is created.
        result: the result of the training.
        num_best: the number of the best agents that get a run folder.

    Raises:
        RunWriteError: a file cannot be written.
    """
    schedule = result.schedule
    arrays: dict[str, Any] = {"iterations": schedule.iterations, "sources": schedule.sources}
    arrays |= {f"setting.{name}": x for name, x in schedule.settings.items()}
    return save_population(runs, result.result, num_best, {SCHEDULE: to_npz(arrays)})


def _finite(value: float) -> float | None:
    """Returns a number as JSON has it, None for one that is not finite."""
    return float(value) if np.isfinite(value) else None
