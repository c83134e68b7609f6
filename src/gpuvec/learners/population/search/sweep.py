"""A search for good settings: samples, successive halving (Jamieson and Talwalkar, 2016), and confirmation on fresh seeds.

All trials are agents of one population. After a part of the training the better ones continue and the others end.

Letters: N trials, S seeds of a trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.population.population_args import NUM_ENVS, PopulationArgs
from gpuvec.learners.population.population_training import OnLaunch, train_population
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.search.search_space import (
    SamplerName,
    SearchParameter,
    require_search_space,
    sample_space,
    split_columns,
)
from gpuvec.learners.population.state.agent_selection import select_agents
from gpuvec.learners.runs.seed_statistics import Estimate, estimate
from gpuvec.learners.wait_reports import OnPhase

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class SweepArgs:
    """The settings of a search.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    base: PPOArgs = field(default_factory=PPOArgs)
    """The settings that all trials share. `num_envs` and `total_steps` are those of one agent."""
    parameters: tuple[SearchParameter, ...] = ()
    """The settings that are varied."""
    num_trials: int = 64
    """Number of trials, N."""
    num_seeds: int = 1
    """Number of seeds of each trial, S, which are the same for all trials."""
    sampler: SamplerName = "sobol"
    """How trials are drawn."""
    halvings: int = 2
    """How often the worse trials end; 0 to train all of them to the end."""
    reduction: int = 4
    """The factor by which the number of trials decreases, and the length of their training increases."""
    num_confirmed: int = 3
    """Number of the best trials that are trained again, from the beginning, on fresh seeds."""
    confirmation_seeds: int = 10
    """Number of these seeds."""

    def __post_init__(self) -> None:
        minima = {"num_trials": 1, "num_seeds": 1, "halvings": 0, "reduction": 2, "num_confirmed": 1, "confirmation_seeds": 1}
        for name, minimum in minima.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}.")
        if self.sampler not in ("sobol", "random"):
            raise ValueError(f"sampler must be sobol or random, got {self.sampler!r}.")
        require_search_space(self.parameters, self.base)

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """The parts of the training: the number of trials in each, and the iteration after which it ends."""
        base = replace(self.base, num_envs=self.base.num_envs or NUM_ENVS).resolved("cpu")
        parts = []
        for k in range(self.halvings + 1):
            trials = max(min(self.num_confirmed, self.num_trials), self.num_trials // self.reduction**k)
            parts.append((trials, math.ceil(base.iterations / self.reduction ** (self.halvings - k))))
        return parts


class Confirmation(NamedTuple):
    """A trial that was trained again on fresh seeds."""

    trial: int
    """Its number."""
    returns: FloatArray
    """(seeds,): the final return with each seed; nan where the agent was stopped."""
    estimate: Estimate
    """The interquartile mean of the returns, with its 95 % bootstrap interval; nan if all agents were stopped."""


class SweepResult(NamedTuple):
    """The result of `sweep`."""

    args: SweepArgs
    values: dict[str, FloatArray]
    """{setting: (N,)}."""
    scores: FloatArray
    """(N,): the mean final return over the seeds of a trial, in the last part of the training that it took; nan for none."""
    rungs: NDArray[np.int64]
    """(N,): the number of that part, from 0."""
    confirmations: list[Confirmation]
    """The best trials on fresh seeds, the best first."""
    confirmed: PopulationResult
    """The agents of the confirmation: each trial of `confirmed_trials` with each seed."""
    confirmed_trials: list[int]
    """The numbers of the trials in the order of the agents."""

    @property
    def best(self) -> dict[str, float]:
        """{setting: value} of the trial that is best on fresh seeds."""
        return {name: float(column[self.confirmations[0].trial]) for name, column in self.values.items()}


def sweep(
    args: SweepArgs,
    on_launch: OnLaunch | None = None,
    on_part: Callable[[str], None] | None = None,
    on_phase: OnPhase | None = None,
) -> SweepResult:
    """Searches for settings with a high return at the end of the training.

    Args:
        args: the settings of the search.
        on_launch: called with the population and the numbers of each launch, as in `train_population`.
        on_part: called with a text at the beginning of each part of the search.
        on_phase: as in `train_population`.

    Raises:
        ValueError, TypeError, DeviceError: settings or a device that do not fit.
        OutOfMemoryError: the agents do not fit into the memory that is free.
    """
    values = sample_space(args.parameters, args.num_trials, args.sampler, args.base.seed)
    scores, rungs = np.full(args.num_trials, np.nan), np.zeros(args.num_trials, np.int64)
    trials, state = list(range(args.num_trials)), dict[str, Any]()
    population = _population_args(args, values, trials, range(args.base.seed, args.base.seed + args.num_seeds))
    for rung, (count, last_iteration) in enumerate(args.rungs):
        if rung:
            trials, agents = _best_trials(trials, scores[trials], count, args.num_seeds)
            population, state = select_agents(population, state, agents)
        if on_part is not None:
            on_part(f"{len(trials):,} trials to iteration {last_iteration:,}")
        result = train_population(population, on_launch, state or None, on_phase, last_iteration=last_iteration)
        state = dict(result.state)
        scores[trials] = _trial_scores(result, args.num_seeds)
        rungs[trials] = rung
    confirmed_trials, _ = _best_trials(trials, scores[trials], args.num_confirmed, args.num_seeds)
    first_seed = args.base.seed + args.num_seeds
    if on_part is not None:
        on_part(f"the best {len(confirmed_trials)} trials on {args.confirmation_seeds} fresh seeds")
    seeds = range(first_seed, first_seed + args.confirmation_seeds)
    confirmed = train_population(_population_args(args, values, confirmed_trials, seeds), on_launch, on_phase=on_phase)
    returns = confirmed.history.final_returns().reshape(len(confirmed_trials), -1)
    confirmations = [_confirmation(trial, own) for trial, own in zip(confirmed_trials, returns, strict=True)]
    confirmations.sort(key=lambda each: -np.nan_to_num(each.estimate.value, nan=-np.inf))
    return SweepResult(args, values, scores, rungs, confirmations, confirmed, confirmed_trials)


def _population_args(args: SweepArgs, values: dict[str, FloatArray], trials: list[int], seeds: range) -> PopulationArgs:
    """Returns the population in which each of `trials` has an agent with each of `seeds`."""
    columns = {name: column[trials].repeat(len(seeds)) for name, column in values.items()}
    params = {name: value for name, value in args.base.params.items() if f"params.{name}" not in values}
    base, num_agents = replace(args.base, params=params), len(trials) * len(seeds)
    settings, own_params = split_columns(columns)
    population = PopulationArgs(base, num_agents, tuple(seeds) * len(trials), settings, own_params)
    return population.resolved(str(parse_device(base.device)))


def _trial_scores(result: PopulationResult, num_seeds: int) -> FloatArray:
    """Returns the mean final return of each trial; nan if an agent was stopped."""
    scores: FloatArray = result.history.final_returns().reshape(-1, num_seeds).mean(1)
    return scores


def _best_trials(trials: list[int], scores: FloatArray, count: int, num_seeds: int) -> tuple[list[int], list[int]]:
    """Returns the `count` best of `trials`, in the order of their numbers, and the numbers of their agents."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")[:count]
    positions = sorted(int(k) for k in order)
    return [trials[k] for k in positions], [k * num_seeds + s for k in positions for s in range(num_seeds)]


def _confirmation(trial: int, returns: FloatArray) -> Confirmation:
    finite: Any = returns[np.isfinite(returns)]
    interval = estimate(finite) if len(finite) else Estimate(math.nan, math.nan, math.nan)
    return Confirmation(trial, returns, interval)
