"""A search for good settings: samples, successive halving (Jamieson and Talwalkar, 2016), confirmation on fresh seeds.

All trials are agents of one population. After a part of the training the better ones continue and the others end.

The files of the folder::

    runs/<env>__sweep__<seed>__<time>/
        sweep.json       the settings of the search, and at its end the best settings and the confirmations
        versions.json    packages, Python, platform, and the commit if gpuvec runs from a checkout
        progress.npz     where a search that is not finished continues; one file, which is replaced as a whole
        trials.npz       the settings, the score and the last part of each trial
        trials.png       the trials as lines from setting to setting, and the scores by each; only where matplotlib is installed
        best__ppo__<seed>/    the run folder of the best agent of the best trial
        lock             locked by the process that writes to the folder

Letters: N trials, S seeds of a trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import CheckpointError, StateError
from gpuvec.learners.algorithms import ALL, args_to_dict
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import OnResults, train_population
from gpuvec.learners.population.results.population_folder import population_base, read_state, save_agent
from gpuvec.learners.population.results.population_history import PopulationHistory, read_history
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.search.search_space import (
    TRIALS,
    SweepArgs,
    parse_parameters,
    read_columns,
    sample_space,
    split_columns,
)
from gpuvec.learners.population.state.agent_state import select_agents
from gpuvec.learners.population.state.state_arrays import state_to_arrays
from gpuvec.learners.runs.archives import NpzReader, flatten, to_npz, write_npz
from gpuvec.learners.runs.comparison import Estimate, estimate, reward_threshold
from gpuvec.learners.runs.content_checks import require_keys, require_mapping
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, SWEEP, parse_json, to_json
from gpuvec.learners.runs.run_writer import new_run_folder
from gpuvec.learners.runs.trusted_code import SIGNATURE, Signature, digest_of, import_code, sign
from gpuvec.learners.wait_reports import OnPhase

FloatArray = NDArray[np.float64]
PROGRESS, TRIALS_PICTURE = "progress.npz", "trials.png"
TRIAL, HISTORY, STATE = "trial/", "history/", "state/"  # the beginnings of the names of arrays in the progress
COUNTS = ("num_trials", "num_seeds", "halvings", "reduction", "num_confirmed", "confirmation_seeds")
"""The settings of a search that are numbers."""


class Confirmation(NamedTuple):
    """A trial that was trained again on fresh seeds."""

    trial: int
    """Its number."""
    returns: FloatArray
    """(seeds,): the return of the last evaluation with each seed; nan where the agent was stopped."""
    estimate: Estimate
    """The interquartile mean of the returns, with its 95 % bootstrap interval; nan if all agents were stopped."""
    steps: FloatArray
    """(seeds,): the steps before the first evaluation that reached the environment's reward threshold; nan if none did."""


class SweepResult(NamedTuple):
    """The result of `sweep`."""

    args: SweepArgs
    values: dict[str, FloatArray]
    """{setting: (N,)}."""
    scores: FloatArray
    """(N,): the mean return over the seeds of a trial in the evaluation at the end of the last part of the training that it
    took; nan for none."""
    rungs: NDArray[np.int64]
    """(N,): the number of that part, from 0."""
    confirmations: list[Confirmation]
    """The best trials on fresh seeds, the best first: with the highest estimate; of equal ones the one with the highest lower
    end of the interval, and then with the fewest steps to the threshold."""
    confirmed: PopulationResult
    """The agents of the confirmation: each trial of `confirmed_trials` with each seed."""
    confirmed_trials: list[int]
    """The numbers of the trials in the order of the agents."""

    @property
    def best(self) -> dict[str, float]:
        """{setting: value} of the trial that is best on fresh seeds."""
        return {name: float(column[self.confirmations[0].trial]) for name, column in self.values.items()}


@dataclass
class SweepProgress:
    """How far a search has come, from which it continues."""

    values: dict[str, FloatArray]
    """{setting: (N,)}."""
    scores: FloatArray
    """(N,): as in `SweepResult`, of the parts that are finished; nan before."""
    rungs: NDArray[np.int64]
    """(N,): the number of the last finished part that a trial took, from 0; -1 for none."""
    part: int
    """The number of the part that continues; the confirmation is the last one."""
    trials: list[int]
    """The numbers of the trials that take it."""
    state: Mapping[str, Any] | None = None
    """The state of the population from which the part continues; None for a new one."""
    history: PopulationHistory | None = None
    """The numbers of the part so far; None before its first iteration."""

    @classmethod
    def initial(cls, args: SweepArgs) -> SweepProgress:
        """Returns that of a new search.

        Args:
            args: the settings of the search.
        """
        count = args.num_trials
        values = sample_space(args.parameters, count, args.sampler, args.base.seed)
        return cls(values, np.full(count, np.nan), np.full(count, -1, np.int64), 0, list(range(count)))


class Search:
    """A search, part after part.

    Args:
        args: the settings of the search.
        progress: that of a search with the same settings, which continues; None for a new one.
    """

    def __init__(self, args: SweepArgs, progress: SweepProgress | None = None) -> None:
        self.args = args
        self.progress = progress or SweepProgress.initial(args)

    def run(
        self,
        on_results: OnResults | None = None,
        on_part: Callable[[str], None] | None = None,
        on_phase: OnPhase | None = None,
        should_stop: Callable[[], bool] | None = None,
        on_progress: Callable[[SweepProgress], None] | None = None,
        checkpoint_every: int | None = None,
    ) -> SweepResult | None:
        """Runs the search to its end, or until it is stopped; `progress` is then where it continues.

        Args:
            on_results: called with the numbers of each launch, as in `train_population`.
            on_part: called with a text at the beginning of each part of the search.
            on_phase: as in `train_population`.
            should_stop: called before each launch; returns whether the search stops.
            on_progress: called with the progress, from which the search can continue, when a part is finished and another one
                follows, and during a part as often as `on_checkpoint` of `train_population`.
            checkpoint_every: as in `train_population`.

        Returns:
            The result; None if the search was stopped.

        Raises:
            ValueError, TypeError, DeviceError, StateError: settings, a device or a state that do not fit.
            OutOfMemoryError: the agents do not fit into the memory that is free.
        """
        parts = self.args.rungs

        def save(result: PopulationResult) -> None:
            assert on_progress is not None, "it is called if there is one"
            on_progress(replace(self.progress, state=result.state, history=result.history))

        while True:
            progress, is_confirmation = self.progress, self.progress.part == len(parts)
            if on_part is not None:
                on_part(self._title())
            last_iteration = None if is_confirmation else parts[progress.part][1]
            result = train_population(
                population_of_part(self.args, progress), state=progress.state, on_phase=on_phase, should_stop=should_stop,
                last_iteration=last_iteration, on_results=on_results, history=progress.history,
                on_checkpoint=None if on_progress is None else save, checkpoint_every=checkpoint_every,
            )  # fmt: skip
            if result.state["iteration"] < (last_iteration or result.args.base.iterations):
                history = result.history if len(result.history.steps) else None
                self.progress = replace(progress, state=result.state, history=history)
                return None
            if is_confirmation:
                return self._result(result)
            self.progress = self._next_part(result)
            if on_progress is not None:
                on_progress(self.progress)

    def _title(self) -> str:
        """Returns what the part does."""
        count, rungs = len(self.progress.trials), self.args.rungs[self.progress.part :]
        if rungs:
            return f"{count:,} trials to iteration {rungs[0][1]:,}"
        return f"the best {count} trials on {self.args.confirmation_seeds} fresh seeds"

    def _next_part(self, result: PopulationResult) -> SweepProgress:
        """Returns the progress after a finished part, with which the better trials continue.

        Args:
            result: that of the part.
        """
        args, before, part = self.args, self.progress, self.progress.part + 1
        scores, rungs = before.scores.copy(), before.rungs.copy()
        # A trial has no score if one of its agents was stopped.
        scores[before.trials] = result.history.final_returns().reshape(-1, args.num_seeds).mean(1)
        rungs[before.trials] = before.part
        is_search = part < len(args.rungs)
        count = args.rungs[part][0] if is_search else args.num_confirmed
        order = np.argsort(-np.nan_to_num(scores[before.trials], nan=-np.inf), kind="stable")[:count]
        positions = sorted(int(k) for k in order)
        trials, state = [before.trials[k] for k in positions], None
        if is_search:
            agents = [k * args.num_seeds + s for k in positions for s in range(args.num_seeds)]
            _, state = select_agents(result.args, result.state, agents)
        return SweepProgress(before.values, scores, rungs, part, trials, state)

    def _result(self, confirmed: PopulationResult) -> SweepResult:
        """Returns the result of the search.

        Args:
            confirmed: that of the confirmation.
        """
        progress = self.progress
        history, shape = confirmed.history, (len(progress.trials), -1)
        returns = history.final_returns().reshape(shape)
        steps = history.steps_to(reward_threshold(self.args.base.env)).reshape(shape)
        confirmations = []
        for trial, own_returns, own_steps in zip(progress.trials, returns, steps, strict=True):
            finite = own_returns[np.isfinite(own_returns)]
            interval = estimate(finite) if len(finite) else Estimate(math.nan, math.nan, math.nan)
            confirmations.append(Confirmation(trial, own_returns, interval, own_steps))
        confirmations.sort(key=rank)
        return SweepResult(
            self.args, progress.values, progress.scores, progress.rungs, confirmations, confirmed, progress.trials
        )  # fmt: skip


def population_of_part(args: SweepArgs, progress: SweepProgress) -> PopulationArgs:
    """Returns the population of the part that continues, in which each trial has an agent with each seed.

    Args:
        args: the settings of the search.
        progress: how far it has come.
    """
    # At the end of a part all agents are evaluated; in the confirmation also before, for the steps to the threshold.
    first, count, every = args.base.seed, args.num_seeds, None
    if progress.part == len(args.rungs):
        first, count, every = first + count, args.confirmation_seeds, args.confirmation_interval
    columns = {name: column[progress.trials].repeat(count) for name, column in progress.values.items()}
    params = {name: value for name, value in args.base.params.items() if f"params.{name}" not in columns}
    seeds = tuple(range(first, first + count)) * len(progress.trials)
    shared = replace(args.base, params=params, evaluate_every=every)
    population = PopulationArgs(shared, len(seeds), seeds, *split_columns(columns))
    return population.resolved(str(parse_device(args.base.device)))


def sweep(
    args: SweepArgs,
    on_results: OnResults | None = None,
    on_part: Callable[[str], None] | None = None,
    on_phase: OnPhase | None = None,
) -> SweepResult:
    """Searches for settings with a high return at the end of the training.

    Args:
        args: the settings of the search.
        on_results: called with the numbers of each launch, as in `train_population`.
        on_part: called with a text at the beginning of each part of the search.
        on_phase: as in `train_population`.

    Raises:
        ValueError, TypeError, DeviceError: settings or a device that do not fit.
        OutOfMemoryError: the agents do not fit into the memory that is free.
    """
    result = Search(args).run(on_results, on_part, on_phase)
    assert result is not None, "nothing stops the search"
    return result


def rank(confirmation: Confirmation) -> tuple[float, ...]:
    """Returns what is lower for the better of two trials; many trials of an easy environment reach the highest return.

    Args:
        confirmation: that of a trial.
    """
    value, low, _ = (-np.nan_to_num(x, nan=-np.inf) for x in confirmation.estimate)
    return value, low, float(np.nan_to_num(confirmation.steps, nan=np.inf).mean())


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
        values = require_mapping(record, SWEEP)
        require_keys(values, ("base", "parameters", "sampler", *COUNTS), SWEEP, exact=False)
        counts, parameters = {name: values[name] for name in COUNTS}, parse_parameters(values["parameters"])
        args = SweepArgs(population_base(values["base"]), parameters, sampler=values["sampler"], **counts)
    except (CheckpointError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder.path / SWEEP} is damaged: {error}") from error
    if "confirmations" in record:
        raise StateError(f"{folder.path} is complete: start another search.")
    if PROGRESS not in folder.file_names():  # it was stopped in its first part, by no signal that can be handled
        return args, SweepProgress.initial(args)
    with folder.open(PROGRESS) as file:
        return args, _read_progress(NpzReader(file, str(folder.path / PROGRESS)), args)


def _read_progress(reader: NpzReader, args: SweepArgs) -> SweepProgress:
    """Returns the progress of a search with the settings `args` in a file; raises CheckpointError for another content."""
    record, count = reader.record(), args.num_trials
    values, scores, rungs = read_columns(reader, args.parameters, count, TRIAL)
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
