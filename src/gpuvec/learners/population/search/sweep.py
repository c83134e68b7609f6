"""A search for good settings: samples, successive halving (Jamieson and Talwalkar, 2016), and confirmation on fresh seeds.

All trials are agents of one population. After a part of the training the better ones continue and the others end.

Letters: N trials, S seeds of a trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import OnResults, train_population
from gpuvec.learners.population.results.population_history import PopulationHistory
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.search.search_space import sample_space, split_columns
from gpuvec.learners.population.search.sweep_args import SweepArgs
from gpuvec.learners.population.state.agent_state import select_agents
from gpuvec.learners.runs.comparison import Estimate, estimate, reward_threshold
from gpuvec.learners.wait_reports import OnPhase

FloatArray = NDArray[np.float64]


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
        while True:
            progress, is_confirmation = self.progress, self.progress.part == len(parts)
            if on_part is not None:
                on_part(self._title())
            last_iteration = None if is_confirmation else parts[progress.part][1]
            result = train_population(
                population_of_part(self.args, progress), state=progress.state, on_phase=on_phase, should_stop=should_stop,
                last_iteration=last_iteration, on_results=on_results, history=progress.history,
                on_checkpoint=self._checkpoint(on_progress), checkpoint_every=checkpoint_every,
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

    def _checkpoint(self, on_progress: Callable[[SweepProgress], None] | None) -> Callable[[PopulationResult], None] | None:
        """Returns the function that passes the result of a part so far on as the progress of the search; None for none."""
        if on_progress is None:
            return None
        return lambda result: on_progress(replace(self.progress, state=result.state, history=result.history))

    def _title(self) -> str:
        """Returns what the part does."""
        trials, part = self.progress.trials, self.progress.part
        if part < len(self.args.rungs):
            return f"{len(trials):,} trials to iteration {self.args.rungs[part][1]:,}"
        return f"the best {len(trials)} trials on {self.args.confirmation_seeds} fresh seeds"

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
        confirmations = [_confirmation(*each) for each in zip(progress.trials, returns, steps, strict=True)]
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
    trials, base = progress.trials, args.base
    # At the end of a part all agents are evaluated; in the confirmation also before, for the steps to the threshold.
    first, count, every = base.seed, args.num_seeds, None
    if progress.part == len(args.rungs):
        first, count, every = first + count, args.confirmation_seeds, args.confirmation_interval
    columns = {name: column[trials].repeat(count) for name, column in progress.values.items()}
    params = {name: value for name, value in base.params.items() if f"params.{name}" not in columns}
    seeds = tuple(range(first, first + count)) * len(trials)
    shared = replace(base, params=params, evaluate_every=every)
    population = PopulationArgs(shared, len(seeds), seeds, *split_columns(columns))
    return population.resolved(str(parse_device(base.device)))


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


def _confirmation(trial: int, returns: FloatArray, steps: FloatArray) -> Confirmation:
    finite: Any = returns[np.isfinite(returns)]
    interval = estimate(finite) if len(finite) else Estimate(math.nan, math.nan, math.nan)
    return Confirmation(trial, returns, interval, steps)
