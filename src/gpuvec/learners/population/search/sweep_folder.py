"""The folder of a search.

The files of the folder::

    runs/<env>__sweep__<seed>__<time>/
        sweep.json       the settings of the search, and at its end the best settings and the confirmations
        versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
        progress.pt      where a search that is not finished continues
        trials.npz       the settings, the score and the last part of each trial
        trials.png       the trials as lines from setting to setting, and the scores by each; only where matplotlib is installed
        best__ppo__<seed>/    the run folder of the best agent of the best trial
        lock             locked by the process that writes to the folder

Letters: N trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuvec.errors import CheckpointError, StateError
from gpuvec.learners.algorithms import args_from_json, args_to_dict
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.population.results.npz_content import to_npz
from gpuvec.learners.population.results.population_folder import require_state, save_agent
from gpuvec.learners.population.results.population_history import history_from_arrays
from gpuvec.learners.population.search.sweep import SweepProgress, SweepResult
from gpuvec.learners.population.search.sweep_args import SweepArgs
from gpuvec.learners.population.search.trials import TRIALS, parse_parameters
from gpuvec.learners.runs.checkpoint import load_tensors
from gpuvec.learners.runs.checkpoint_schema import require_tensors
from gpuvec.learners.runs.comparison import reward_threshold
from gpuvec.learners.runs.content_checks import require_keys, require_mapping, require_settings
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, SWEEP, VERSIONS, parse_json, to_json
from gpuvec.learners.runs.run_writer import collect_versions, create_run_folder

PROGRESS, TRIALS_PICTURE = "progress.pt", "trials.png"
COUNTS = ("num_trials", "num_seeds", "halvings", "reduction", "num_confirmed", "confirmation_seeds")
"""The settings of a search that are numbers."""


class SweepWriter:
    """Writes the folder of a search, which it creates and locks before the first file.

    Args:
        runs: the folder in which the folder is created.
        args: the settings of the search, with resolved settings of the trials.
        folder: the folder of a search that continues, which is locked; None for a new one.
    """

    def __init__(self, runs: Path | str, args: SweepArgs, folder: RunFolder | None = None) -> None:
        self._runs, self._args, self._folder = runs, args, folder

    def open(self) -> RunFolder:
        """Returns the folder, which exists from the first call on.

        Raises:
            RunWriteError: a file cannot be written.
        """
        if self._folder is None:
            base = self._args.base
            self._folder = RunFolder(create_run_folder(self._runs, base.env, "sweep", base.seed))
            self._folder.lock()
            self._folder.write(VERSIONS, to_json(collect_versions()))
            self._write_record(0)
        return self._folder

    def _write_record(self, finished_parts: int, **result: Any) -> None:
        """Writes sweep.json."""
        assert self._folder is not None, "it is open"
        self._folder.write(SWEEP, to_json({**args_record(self._args), "finished_parts": finished_parts, **result}))

    def close(self) -> None:
        """Unlocks and closes the folder."""
        if self._folder is not None:
            self._folder.close()

    def save_progress(self, progress: SweepProgress) -> None:
        """Writes where the search continues.

        Args:
            progress: that of the search.

        Raises:
            RunWriteError: a file cannot be written.
        """
        folder = self.open()
        arrays = {**progress.values, "score": progress.scores, "part": progress.rungs}
        folder.write(TRIALS, to_npz(arrays))
        content = {
            "arrays": _to_tensors(arrays), "part": progress.part, "trials": list(progress.trials),
            "state": None if progress.state is None else dict(progress.state),
            "history": None if progress.history is None else _to_tensors(progress.history.arrays()),
        }  # fmt: skip
        with folder.open_replacement(PROGRESS) as file:
            torch.save(content, file)
        self._write_record(progress.part)

    def save_result(self, result: SweepResult, pictures: Mapping[str, bytes]) -> Path:
        """Writes the result, and returns the path of the folder.

        Args:
            result: that of the search.
            pictures: {name: content} of files with pictures of the trials.

        Raises:
            RunWriteError: a file cannot be written.
        """
        folder = self.open()
        folder.write(TRIALS, to_npz({**result.values, "score": result.scores, "part": result.rungs}))
        for name, content in pictures.items():
            folder.write(name, content)
        best = result.confirmations[0]
        first = result.confirmed_trials.index(best.trial) * len(best.returns)
        agent = first + int(np.argmax(np.nan_to_num(best.returns, nan=-np.inf)))
        if np.isfinite(best.estimate.value):
            save_agent(folder.path / f"best__ppo__{result.confirmed.args.seeds[agent]}", result.confirmed, agent)
        self._write_record(len(self._args.rungs) + 1, **result_record(result))
        folder.remove(PROGRESS)
        return folder.path


def args_record(args: SweepArgs) -> dict[str, Any]:
    """Returns the settings of a search as sweep.json has them.

    Args:
        args: the settings.
    """
    counts = {name: getattr(args, name) for name in COUNTS}
    parameters = [list(each) for each in args.parameters]
    return {"base": args_to_dict(args.base), "parameters": parameters, "sampler": args.sampler, **counts, "parts": args.rungs}


def result_record(result: SweepResult) -> dict[str, Any]:
    """Returns the result of a search as sweep.json has it, with null in place of numbers that are not finite.

    Args:
        result: the result of the search.
    """
    confirmations = [
        {
            "trial": each.trial, "settings": {name: float(column[each.trial]) for name, column in result.values.items()},
            "score": _finite(result.scores[each.trial]), "returns": [_finite(value) for value in each.returns],
            "interquartile_mean": _finite(each.estimate.value), "low": _finite(each.estimate.low),
            "high": _finite(each.estimate.high), "steps_to_threshold": [_finite(steps) for steps in each.steps],
        }
        for each in result.confirmations
    ]  # fmt: skip
    threshold = _finite(reward_threshold(result.args.base.env))
    base, every = result.confirmed.args.base, result.args.confirmation_interval
    evaluation = {
        "every_steps": None if every is None else every * base.steps_per_iteration, "episodes": base.evaluate_episodes,
        "params": base.evaluate_params,
    }  # fmt: skip
    return {"best": result.best, "threshold": threshold, "evaluation": evaluation, "confirmations": confirmations}


def load_sweep(folder: RunFolder) -> tuple[SweepArgs, SweepProgress]:
    """Reads where a search continues from its folder, which anybody may have written: nothing in it is executed.

    Args:
        folder: the folder.

    Raises:
        FileNotFoundError: it is not the folder of a search.
        CheckpointError: a file is damaged.
        StateError: the search is complete.
    """
    try:
        record = parse_json(folder.read(SWEEP, MAX_RECORD_BYTES))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder.path} is not the folder of a search: it has no {SWEEP}. `gpuvec sweep` creates one."
        ) from None
    try:
        args = _parse_args(record)
    except (CheckpointError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder.path / SWEEP} is damaged: {error}") from error
    if "confirmations" in record:
        raise StateError(f"{folder.path} is complete: start another search.")
    if PROGRESS not in folder.file_names():  # it was stopped in its first part, by no signal that can be handled
        return args, SweepProgress.initial(args)
    with folder.open(PROGRESS) as file:
        try:
            return args, _parse_progress(load_tensors(file), args)
        except CheckpointError as error:
            raise CheckpointError(f"{folder.path / PROGRESS} cannot be used: {error}") from error


def _parse_args(record: object) -> SweepArgs:
    """Returns the settings of a search in a file; raises CheckpointError, ValueError or TypeError for others."""
    values = require_mapping(record, SWEEP)
    require_keys(values, ("base", "parameters", "sampler", *COUNTS), SWEEP, exact=False)
    require_settings({name: tuple(x) if isinstance(x, list) else x for name, x in values["base"].items()}, "base")
    base = args_from_json(values["base"])
    if not isinstance(base, PPOArgs):
        raise CheckpointError("base is not of the algorithm ppo.")
    parameters = parse_parameters(values["parameters"])
    return SweepArgs(base, parameters, sampler=values["sampler"], **{name: values[name] for name in COUNTS})


def _parse_progress(content: object, args: SweepArgs) -> SweepProgress:
    """Returns the progress of a search with the settings `args` in a file; raises CheckpointError for another content."""
    parts = require_mapping(content, "the progress")
    require_keys(parts, ("arrays", "part", "trials", "state", "history"), "", exact=True)
    expected = {**{each.name: torch.float64 for each in args.parameters}, "score": torch.float64, "part": torch.int64}
    tensors = require_mapping(parts["arrays"], "arrays")
    require_keys(tensors, tuple(expected), "arrays", exact=True)
    require_tensors(tensors, "arrays")
    for name, dtype in expected.items():
        if tensors[name].shape != (args.num_trials,) or tensors[name].dtype != dtype:
            raise CheckpointError(f"arrays.{name} must have a number for each of the {args.num_trials:,} trials.")
    arrays = {name: x.numpy() for name, x in tensors.items()}
    scores, rungs = arrays.pop("score"), arrays.pop("part")
    part, trials = parts["part"], parts["trials"]
    if type(part) is not int or not 0 <= part <= len(args.rungs):
        raise CheckpointError(f"part must be a number from 0 to {len(args.rungs)}.")
    if not isinstance(trials, list) or not trials or any(type(k) is not int for k in trials):
        raise CheckpointError("trials must be a list of numbers.")
    if sorted(set(trials)) != sorted(trials) or min(trials) < 0 or max(trials) >= args.num_trials:
        raise CheckpointError(f"trials must be different numbers from 0 to {args.num_trials - 1}.")
    history = None
    if parts["history"] is not None:
        require_tensors(require_mapping(parts["history"], "history"), "history")
        history = history_from_arrays({name: x.numpy() for name, x in parts["history"].items()}, "history")
    state = None if parts["state"] is None else require_state(parts["state"])
    return SweepProgress(arrays, scores, rungs, part, trials, state, history)


def _to_tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}


def _finite(value: float) -> float | None:
    """Returns a number as JSON has it, None for one that is not finite."""
    return float(value) if np.isfinite(value) else None
