"""The folder of a search.

The files of the folder::

    runs/<env>__sweep__<seed>__<time>/
        sweep.json       the settings of the search, and at its end the best settings and the confirmations
        versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
        progress.npz     where a search that is not finished continues; one file, which is replaced as a whole
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

from gpuvec.errors import CheckpointError, StateError
from gpuvec.learners.algorithms import ALL, args_to_dict
from gpuvec.learners.population.results.population_folder import population_base, read_state, save_agent
from gpuvec.learners.population.results.population_history import read_history
from gpuvec.learners.population.search.search_space import TRIALS, parse_parameters
from gpuvec.learners.population.search.sweep import SweepProgress, SweepResult, population_of_part
from gpuvec.learners.population.search.sweep_args import SweepArgs
from gpuvec.learners.population.state.state_arrays import state_to_arrays
from gpuvec.learners.runs.archives import NpzReader, flatten, to_npz, write_npz
from gpuvec.learners.runs.comparison import reward_threshold
from gpuvec.learners.runs.content_checks import require_keys, require_mapping
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, SWEEP, parse_json, to_json
from gpuvec.learners.runs.run_writer import new_run_folder
from gpuvec.learners.runs.trusted_code import SIGNATURE, Signature, digest_of, import_code, sign

PROGRESS, TRIALS_PICTURE = "progress.npz", "trials.png"
TRIAL, HISTORY, STATE = "trial/", "history/", "state/"  # the beginnings of the names of arrays in the progress
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
            self._folder = new_run_folder(self._runs, base.env, "sweep", base.seed)
            self._write_record(0)
        return self._folder

    def _write_record(self, finished_parts: int, **result: Any) -> None:
        """Writes sweep.json."""
        assert self._folder is not None, "it is open"
        record = {**args_record(self._args), "finished_parts": finished_parts, **result}
        signature = sign({ALL: record["base"]}, digest_of(record))
        self._folder.write(SWEEP, to_json({**record, SIGNATURE: signature} if signature else record))

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
        content = flatten(arrays, TRIAL)
        if progress.history is not None:
            content |= flatten(progress.history.arrays(), HISTORY)
        if progress.state is not None:
            content |= state_to_arrays(progress.state, STATE)
        with folder.open_replacement(PROGRESS) as file:
            write_npz(file, content, {"part": progress.part, "trials": list(progress.trials)})
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


def load_sweep(folder: RunFolder, trust: bool = False) -> tuple[SweepArgs, SweepProgress]:
    """Reads where a search continues from its folder, which anybody may have written: nothing in it is executed.

    Args:
        folder: the folder.
        trust: whether the modules that it names may be imported, which runs their code.

    Raises:
        FileNotFoundError: it is not the folder of a search.
        CheckpointError: a file is damaged, or names a module that is neither imported nor trusted.
        StateError: the search is complete.
    """
    try:
        record = parse_json(folder.read(SWEEP, MAX_RECORD_BYTES))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder.path} is not the folder of a search: it has no {SWEEP}. `gpuvec sweep` creates one."
        ) from None
    if isinstance(record, dict):
        text = record.pop(SIGNATURE, None)
        signature = Signature(text if isinstance(text, str) else None, lambda: digest_of(record))
        import_code({ALL: record.get("base")}, folder.path / SWEEP, trust, signature)
    try:
        args = _parse_args(record)
    except (CheckpointError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder.path / SWEEP} is damaged: {error}") from error
    if "confirmations" in record:
        raise StateError(f"{folder.path} is complete: start another search.")
    if PROGRESS not in folder.file_names():  # it was stopped in its first part, by no signal that can be handled
        return args, SweepProgress.initial(args)
    with folder.open(PROGRESS) as file:
        return args, _read_progress(NpzReader(file, str(folder.path / PROGRESS)), args)


def _parse_args(record: object) -> SweepArgs:
    """Returns the settings of a search in a file; raises CheckpointError, ValueError or TypeError for others."""
    values = require_mapping(record, SWEEP)
    require_keys(values, ("base", "parameters", "sampler", *COUNTS), SWEEP, exact=False)
    base = population_base(values["base"])
    parameters = parse_parameters(values["parameters"])
    return SweepArgs(base, parameters, sampler=values["sampler"], **{name: values[name] for name in COUNTS})


def _read_progress(reader: NpzReader, args: SweepArgs) -> SweepProgress:
    """Returns the progress of a search with the settings `args` in a file; raises CheckpointError for another content."""
    record, count = reader.record(), args.num_trials
    expected = {**{each.name: np.float64 for each in args.parameters}, "score": np.float64, "part": np.int64}
    for name, dtype in expected.items():
        reader.require(TRIAL + name, (count,), dtype)
    values = reader.read_all(TRIAL, expected)
    scores, rungs = values.pop("score"), values.pop("part")
    part, trials = record.get("part"), record.get("trials")
    if type(part) is not int or not 0 <= part <= len(args.rungs):
        raise reader.error(f"part must be a number from 0 to {len(args.rungs)}")
    if not isinstance(trials, list) or not trials or any(type(k) is not int for k in trials):
        raise reader.error("trials must be a list of numbers")
    if sorted(set(trials)) != sorted(trials) or min(trials) < 0 or max(trials) >= count:
        raise reader.error(f"trials must be different numbers from 0 to {count - 1}")
    progress = SweepProgress(values, scores, rungs, part, trials)
    try:
        population = population_of_part(args, progress)
    except (ValueError, TypeError) as error:
        raise reader.error(f"its trials cannot be trained: {str(error).rstrip('.')}") from error
    groups = {name.partition("/")[0] + "/" for name in reader.specs}
    if HISTORY in groups:
        progress.history = read_history(reader, population.num_agents, HISTORY)
    if STATE in groups:
        progress.state = read_state(reader, STATE, population, progress.history)
    if HISTORY in groups and STATE not in groups:
        raise reader.error("it has numbers, and no state from which they continue")
    return progress


def _finite(value: float) -> float | None:
    """Returns a number as JSON has it, None for one that is not finite."""
    return float(value) if np.isfinite(value) else None
