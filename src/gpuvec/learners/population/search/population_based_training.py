"""Population-based training (Jaderberg et al., 2017, arXiv:1711.09846): the settings of agents change while they learn.

Between launches the worst agents take the parameters and moments of some of the best ones (exploit), and perturbed settings of
theirs (explore). All changes are recorded.

The score of an agent is the mean return of the last finished episodes of its environments. It has none before each of them has
ended one with the parameters that the agent has, and until then it neither copies nor is copied. An interval has at least as
many steps as an episode, because otherwise the agents with the longest episodes had no score (design/0061).

Its folder is that of a population, whose file also has what changes, and all changes so far.

Letters: P agents, V changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import CheckpointError
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.population.population_args import METRICS, RUNNING, PopulationArgs
from gpuvec.learners.population.population_training import OnLaunch, OnResults, PopulationPath, train_population
from gpuvec.learners.population.results.population_folder import FilePart, read_population
from gpuvec.learners.population.results.population_history import open_population
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.search.search_space import (
    PARAMS_PREFIX,
    SearchParameter,
    is_finite_number,
    parse_parameters,
    require_search_space,
    sample_space,
    split_columns,
)
from gpuvec.learners.population.state.agent_state import changed_agents
from gpuvec.learners.population.state.environment import make_population_env
from gpuvec.learners.runs.archives import NpzReader
from gpuvec.learners.runs.content_checks import require_keys, require_mapping
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import PBT
from gpuvec.learners.wait_reports import OnPhase

FloatArray = NDArray[np.float64]
MAX_INTERVAL = 2**31 - 1  # iterations, whose numbers are int64
MAX_FACTOR = 1000  # of a setting, far from what float64 cannot represent
SCHEDULE = "schedule/"  # the beginning of the names of the arrays of the schedule
OWN_SETTINGS = ("interval", "fraction", "factors")
"""The settings of population-based training besides those of the population."""


@dataclass(frozen=True)
class PBTArgs:
    """The settings of population-based training.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    base: PPOArgs = field(default_factory=PPOArgs)
    """The settings that all agents share. The learning rate is not annealed, because the training changes it."""
    parameters: tuple[SearchParameter, ...] = ()
    """The settings that change, with the ranges that they do not leave."""
    num_agents: int = 64
    """Number of agents, P."""
    interval: int = 10
    """Iterations between two changes, in which an environment takes at least as many steps as an episode can have."""
    fraction: float = 0.2
    """The part of the agents with a score that copy, and the part of those that are copied from."""
    factors: tuple[float, float] = (0.8, 1.25)
    """A setting of a copy is multiplied by one of these."""

    def __post_init__(self) -> None:
        require_search_space(self.parameters, self.base)
        if of_env := [each.name for each in self.parameters if each.name.startswith(PARAMS_PREFIX)]:
            raise ValueError(f"{of_env[0]} is a parameter of the environment, which does not change during a training.")
        if type(self.interval) is not int or not 1 <= self.interval <= MAX_INTERVAL:
            raise ValueError(f"interval must be an integer from 1 to {MAX_INTERVAL}, got {self.interval!r}.")
        if not 0.0 < self.fraction <= 0.5:
            raise ValueError(f"fraction must be above 0 and at most 0.5, got {self.fraction}.")
        if len(self.factors) != 2 or not all(is_finite_number(x) and 0.0 < x <= MAX_FACTOR for x in self.factors):
            raise ValueError(f"factors must be two numbers above 0 and at most {MAX_FACTOR}, got {self.factors}.")
        if self.num_agents < 2:
            raise ValueError(f"num_agents must be at least 2, of which one learns from the other, got {self.num_agents}.")


class PBTSchedule(NamedTuple):
    """What changed in the training."""

    iterations: NDArray[np.int64]
    """(V,): the number of finished iterations at each change."""
    sources: NDArray[np.int64]
    """(V, P): the agent whose parameters an agent has from then on; the own number where it kept its own."""
    settings: dict[str, FloatArray]
    """{setting: (V + 1, P)}: the first values, and those after each change."""

    @classmethod
    def initial(cls, values: dict[str, FloatArray]) -> PBTSchedule:
        """Returns that of a new training.

        Args:
            values: {setting: (P,)}: the first values.
        """
        num_agents = len(next(iter(values.values())))
        settings = {name: column[np.newaxis] for name, column in values.items()}
        return cls(np.zeros(0, np.int64), np.zeros((0, num_agents), np.int64), settings)

    def lineage(self, k: int) -> tuple[list[int], dict[str, FloatArray]]:
        """Returns the agents in which the parameters of agent `k` were, and {setting: values}, both (V + 1,).

        This is the schedule with which a single training would learn what agent `k` has at the end.

        Args:
            k: the number of the agent at the end of the training.
        """
        agents = [k]
        for sources in self.sources[::-1]:
            agents.append(int(sources[agents[-1]]))
        agents.reverse()
        index = np.arange(len(agents)), agents
        return agents, {name: column[index] for name, column in self.settings.items()}


class PBTResult(NamedTuple):
    """The result of `population_based_training`."""

    result: PopulationResult
    schedule: PBTSchedule


class Preparation(NamedTuple):
    """What a change of C agents needs besides the results of the launch before it."""

    positions: FloatArray
    """(C,): the positions of the sources among the best agents, as `choose_sources` takes them."""
    factors: FloatArray
    """(settings, C): what the settings of the copies are multiplied by, in the order of their agents."""
    stopped_at: Readout
    """The read of the iterations in which agents were stopped, (P,)."""


class Exploration:
    """Exploits and explores between launches.

    Args:
        args: the settings.
        schedule: what changed before.
    """

    def __init__(self, args: PBTArgs, schedule: PBTSchedule) -> None:
        self._args, self._begun = args, schedule
        self._names = [each.name for each in args.parameters]
        self._values = self._last_values()
        ranges = np.array([(each.low, each.high) for each in args.parameters], np.float64)
        self._low, self._high = ranges[:, :1], ranges[:, 1:]
        # Iteration, sources (P,) and new values (settings, C). Memory for values of all agents would be mapped in each change.
        self._changes: list[tuple[int, NDArray[np.int64], FloatArray]] = []
        self._preparation: Preparation | None = None

    def _last_values(self) -> FloatArray:
        """Returns the values of the settings after all that changed before, (settings, P)."""
        return np.stack([self._begun.settings[name][-1] for name in self._names])

    def prepare(self, population: PopulationPath) -> None:
        """Does what a change can do before the results of a launch are known; on a GPU it is called while the launch runs.

        Args:
            population: the population, whose launch was enqueued.
        """
        args = self._args
        rng = np.random.default_rng((args.base.seed, population.iteration))
        num_copies = max(1, int(args.num_agents * args.fraction))
        positions = rng.random(num_copies)
        factors = np.array(args.factors)[rng.integers(2, size=(len(self._names), num_copies))]
        stopped_at = Readout(population.stopped_at, depth=1)
        stopped_at.start()
        self._preparation = Preparation(positions, factors, stopped_at)

    def __call__(self, population: PopulationPath, results: NDArray[np.float32]) -> None:
        """Changes the worst agents, if the training continues.

        Args:
            population: the population, for whose last launch `prepare` was called.
            results: (I, M, P): the M metrics in the I iterations since the last change.
        """
        if population.iteration >= population.args.base.iterations:
            return
        assert self._preparation is not None, "prepare is called for each launch"
        positions, factors, stopped_at = self._preparation
        scores = last_returns(results)
        scores[stopped_at.take().numpy() != RUNNING] = -np.inf
        source = choose_sources(scores, positions)
        population.copy_learned(source)  # first, because a GPU copies while the settings are computed
        copies = changed_agents(source)
        values = (self._values.take(source[copies], 1) * factors[:, : len(copies)]).clip(self._low, self._high)
        self._values[:, copies] = values
        for name, column in zip(self._names, self._values, strict=True):
            population.set_settings(name, column)
        self._changes.append((population.iteration, source, values))

    def schedule(self) -> PBTSchedule:
        """Returns what changed so far."""
        values = [self._last_values()]
        for _, source, changed in self._changes:
            values.append(values[-1].copy())
            values[-1][:, changed_agents(source)] = changed
        iterations, sources, settings = self._begun
        return PBTSchedule(
            np.concatenate([iterations, np.array([iteration for iteration, _, _ in self._changes], np.int64)]),
            np.concatenate([sources, *(source[np.newaxis] for _, source, _ in self._changes)]),
            {name: np.stack([*settings[name], *(each[k] for each in values[1:])]) for k, name in enumerate(self._names)},
        )


def last_returns(results: NDArray[np.float32]) -> FloatArray:
    """Returns the scores of agents, (P,): the mean return of the last finished episodes of the environments of each.

    It is nan before each environment of the agent has ended an episode.

    Args:
        results: (I, M, P): the M metrics in some iterations, the last of which counts.
    """
    names = "last_return", "last_return_share"
    last_return, ended_share = (results[-1, METRICS.index(name)].astype(np.float64) for name in names)
    return np.where(ended_share == 1.0, last_return, np.nan)


def choose_sources(scores: FloatArray, positions: FloatArray) -> NDArray[np.int64]:
    """Returns for each agent the one whose parameters it takes, (P,): for the worst ones some of the best.

    Agents without a score neither copy nor are copied, and none copies one that is not better. Of the agents with a score the
    same fraction copies as of all, C / P, but at least one.

    Args:
        scores: (P,): the higher the better, nan for none, and minus infinity for an agent that was stopped.
        positions: (C,), C at most P / 2: the positions of the sources among as many best agents, from 0 for the best to 1. The
            last one that is used is that of the worst agent's source.
    """
    order = np.argsort(-scores, kind="stable")[: int((~np.isnan(scores)).sum())]  # those without a score are last
    count = max(1, len(order) * len(positions) // len(scores))
    count = min(count, len(order) // 2, int((scores > -np.inf).sum()))
    targets, sources = order[len(order) - count :], order[(positions[:count] * count).astype(np.int64)]
    is_better = scores[sources] > scores[targets]
    source = np.arange(len(scores))
    source[targets[is_better]] = sources[is_better]
    return source


def require_interval(args: PBTArgs, population: PopulationArgs) -> None:
    """Checks that the agents with the longest episodes have a score at each change.

    Args:
        args: the settings.
        population: those of the population.

    Raises:
        ValueError: an episode can have more steps than an environment takes between two changes.
    """
    base = population.resolved(str(parse_device(args.base.device))).base
    with closing(make_population_env(PopulationArgs(base))) as env:
        limit = env.unwrapped.max_episode_steps
    steps = args.interval * base.num_steps
    if limit is not None and steps < limit:
        raise ValueError(
            f"an environment takes {steps:,} steps in an interval of {args.interval} iterations, and an episode of {base.env} "
            f"can have {limit:,}: agents whose episodes are longer than the interval would not be compared. Use an interval of "
            f"at least {-(-limit // base.num_steps)}."
        )


def population_based_training(
    args: PBTArgs,
    on_launch: OnLaunch | None = None,
    on_phase: OnPhase | None = None,
    should_stop: Callable[[], bool] | None = None,
    begun: PBTResult | None = None,
    on_results: OnResults | None = None,
    on_checkpoint: Callable[[PBTResult], object] | None = None,
    checkpoint_every: int | None = None,
) -> PBTResult:
    """Trains a population whose settings change while it learns.

    Args:
        args: the settings.
        on_launch: called with the population and the numbers of each launch, before agents change.
        on_phase: as in `train_population`.
        should_stop: called before each launch; returns whether the training ends, to continue later from its result.
        begun: the result of a training with the same settings that was stopped, which continues bit for bit.
        on_results: as in `train_population`.
        on_checkpoint, checkpoint_every: as in `train_population`.

    Raises:
        ValueError, TypeError, DeviceError, StateError: settings, a device or a state that do not fit.
        OutOfMemoryError: the agents do not fit into the memory that is free.
    """
    if begun is None:
        schedule = PBTSchedule.initial(sample_space(args.parameters, args.num_agents, "sobol", args.base.seed))
    else:
        schedule = begun.schedule
    exploration = Exploration(args, schedule)

    def after_launch(population: PopulationPath, results: NDArray[np.float32]) -> None:
        if on_launch is not None:
            on_launch(population, results)
        exploration(population, results)

    first_values = {name: column[0] for name, column in schedule.settings.items()}
    base = replace(args.base, anneal_lr=False)
    population_args = PopulationArgs(base, args.num_agents, (), *split_columns(first_values))
    require_interval(args, population_args)
    state, history = (None, None) if begun is None else (begun.result.state, begun.result.history)

    def save(result: PopulationResult) -> None:
        assert on_checkpoint is not None, "it is called if there is one"
        on_checkpoint(PBTResult(result, exploration.schedule()))

    result = train_population(
        population_args, after_launch, state, on_phase, args.interval, should_stop, on_results=on_results,
        while_training=exploration.prepare, history=history, on_checkpoint=None if on_checkpoint is None else save,
        checkpoint_every=checkpoint_every,
    )  # fmt: skip
    return PBTResult(result, exploration.schedule())


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
    return args, PBTResult(saved, schedule)


def _read_schedule(reader: NpzReader, args: PBTArgs, iteration: int) -> PBTSchedule:
    """Returns the changes until an iteration; raises CheckpointError unless the settings `args` allow them."""
    reader.require(f"{SCHEDULE}iterations", None, np.int64)
    changes, agents = (reader.specs[f"{SCHEDULE}iterations"][0] or (0,))[0], args.num_agents
    expected: dict[str, tuple[tuple[int, ...], Any]] = {
        "iterations": ((changes,), np.int64),
        "sources": ((changes, agents), np.int64),
    }
    expected |= {f"setting.{each.name}": ((changes + 1, agents), np.float64) for each in args.parameters}
    arrays = reader.read_expected(expected, SCHEDULE)
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
