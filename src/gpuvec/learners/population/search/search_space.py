"""The settings of a search and those that it varies, samples of them, and the trials in its folder.

This module imports torch where it draws.

Letters: N samples.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.config.training_config import MAX_COUNT, PPOArgs
from gpuvec.learners.config.tuned import NUM_ENVS
from gpuvec.learners.population.population_args import AGENT_SETTINGS, MAX_AGENTS
from gpuvec.learners.runs.archives import NpzReader
from gpuvec.learners.runs.comparison import reward_threshold
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, SWEEP, parse_json

FloatArray = NDArray[np.float64]
SamplerName = Literal["sobol", "random"]
PARAMS_PREFIX = "params."  # of the names of parameters of the environment
TRIALS = "trials.npz"
EVALUATIONS = 16
"""The number of evaluations of a confirmation, if `evaluate_every` does not say it."""


class SearchParameter(NamedTuple):
    """A setting that a search varies."""

    name: str
    """One of `AGENT_SETTINGS`, or "params.gravity" for a parameter of the environment."""
    scale: Literal["log", "linear"]
    """Whether values, or their logarithms, are distributed uniformly."""
    low: float
    """The lowest value."""
    high: float
    """The highest value."""

    def values(self, units: FloatArray) -> FloatArray:
        """Returns the values at positions between the lowest and the highest one.

        Args:
            units: (N,), from 0 to 1.
        """
        if self.scale == "linear":
            return self.low + (self.high - self.low) * units
        return np.exp(math.log(self.low) + (math.log(self.high) - math.log(self.low)) * units).clip(self.low, self.high)

    def units(self, values: FloatArray) -> FloatArray:
        """Returns the positions of values between the lowest and the highest one, from 0 to 1; the inverse of `values`.

        Args:
            values: (N,).
        """
        if self.scale == "linear":
            return (values - self.low) / (self.high - self.low)
        return np.log(values / self.low) / (math.log(self.high) - math.log(self.low))


def require_search_space(parameters: Sequence[SearchParameter], base: PPOArgs) -> None:
    """Checks the settings that a search varies.

    Args:
        parameters: the settings.
        base: the settings that all agents share.

    Raises:
        ValueError: none, one twice, one that agents cannot differ in, or a range that makes no sense.
    """
    names = [parameter.name for parameter in parameters]
    if not names:
        raise ValueError("a search needs settings to vary, such as --param learning_rate log 1e-4 1e-2.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{repeated[0]} is varied twice: give it once.")
    for name, scale, low, high in parameters:
        if name not in AGENT_SETTINGS and not name.startswith(PARAMS_PREFIX):
            raise ValueError(
                f"{name} cannot be varied; {', '.join(AGENT_SETTINGS)} can, and parameters of the environment, as "
                f"{PARAMS_PREFIX}gravity."
            )
        if scale not in ("log", "linear"):
            raise ValueError(f"the scale of {name} must be log or linear, got {scale!r}.")
        if not (is_finite_number(low) and is_finite_number(high) and low < high):
            values = f"{reprlib.repr(low)} to {reprlib.repr(high)}"
            raise ValueError(f"the range of {name} must go from a lower to a higher number, got {values}.")
        if scale == "log" and low <= 0.0:
            raise ValueError(f"the range of {name} must be above 0 on a logarithmic scale, got {low:g} to {high:g}.")
        if name in AGENT_SETTINGS:
            for value in (low, high):
                changes: dict[str, Any] = {name: value}
                replace(base, num_envs=None, **changes)


def is_finite_number(x: Any) -> bool:
    """Whether a value is a number that float64 can represent.

    Args:
        x: the value, such as 10**400 of a file in JSON, with which functions of floats raise OverflowError.
    """
    is_number = isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)
    return bool(is_number and abs(x) <= sys.float_info.max)


def sample_space(parameters: Sequence[SearchParameter], count: int, sampler: SamplerName, seed: int) -> dict[str, FloatArray]:
    """Returns {name: (count,) values} of settings.

    Args:
        parameters: the settings.
        count: the number of samples.
        sampler: "sobol" for a scrambled Sobol sequence, which covers the space more evenly, or "random".
        seed: of the samples.
    """
    if sampler == "sobol":
        from torch.quasirandom import SobolEngine

        units = SobolEngine(len(parameters), scramble=True, seed=seed).draw(count).double().numpy()
    else:
        units = np.random.default_rng(seed).random((count, len(parameters)))
    return {parameter.name: parameter.values(units[:, k]) for k, parameter in enumerate(parameters)}


def split_columns(columns: dict[str, FloatArray]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns the settings of agents and the parameters of their environments, as `PopulationArgs` takes them.

    Args:
        columns: {name: (P,)}.
    """
    settings = {name: x.tolist() for name, x in columns.items() if not name.startswith(PARAMS_PREFIX)}
    params = {
        name.removeprefix(PARAMS_PREFIX): x.tolist() for name, x in columns.items() if name.startswith(PARAMS_PREFIX)
    }  # fmt: skip
    return settings, params


@dataclass(frozen=True)
class SweepArgs:
    """The settings of a search.

    Raises:
        ValueError: a value out of its range; the message names it and what is allowed.
    """

    base: PPOArgs = field(default_factory=PPOArgs)
    """The settings that all trials share. `num_envs` and `total_steps` are those of one agent. All agents are evaluated at the
    end of each part, and after every `evaluate_every` iterations of the confirmation; by default 16 times in it if the
    environment has a reward threshold."""
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
        agents = {"trials": self.num_trials * self.num_seeds, "confirmed trials": self.num_confirmed * self.confirmation_seeds}
        for name, count in agents.items():
            if count > MAX_AGENTS:
                raise ValueError(f"the {name} need {count:,} agents, and at most {MAX_AGENTS:,} train at once.")
        if self.halvings > math.log(MAX_COUNT, self.reduction):
            raise ValueError(f"reduction ** halvings must be at most {MAX_COUNT:,}: give fewer halvings.")
        if self.sampler not in ("sobol", "random"):
            raise ValueError(f"sampler must be sobol or random, got {self.sampler!r}.")
        require_search_space(self.parameters, self.base)

    @property
    def confirmation_interval(self) -> int | None:
        """The number of iterations between two evaluations of the confirmation, which is the resolution of its steps.

        None for an evaluation at the end alone, if the environment has no threshold to reach.
        """
        if math.isnan(reward_threshold(self.base.env)):
            return self.base.evaluate_every
        return self.base.evaluate_every or max(1, self._iterations // EVALUATIONS)

    @property
    def _iterations(self) -> int:
        return replace(self.base, num_envs=self.base.num_envs or NUM_ENVS).resolved("cpu").iterations

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """The parts before the confirmation: the number of trials in each, and the iteration after which it ends.

        A training with few iterations has fewer parts, since each part has at least one.
        """
        parts: dict[int, int] = {}
        for k in range(self.halvings + 1):
            trials = max(min(self.num_confirmed, self.num_trials), self.num_trials // self.reduction**k)
            parts.setdefault(math.ceil(self._iterations / self.reduction ** (self.halvings - k)), trials)
        return [(trials, end) for end, trials in parts.items()]


class Trials(NamedTuple):
    """The trials of a search."""

    env: str
    """The id of the environment."""
    parameters: tuple[SearchParameter, ...]
    """The settings that were varied."""
    values: dict[str, FloatArray]
    """{setting: (N,)}."""
    scores: FloatArray
    """(N,): the mean final return in the last part that a trial took; nan for none."""
    parts: NDArray[np.int64]
    """(N,): the number of that part, from 0; -1 for none."""


def parse_parameters(content: object) -> tuple[SearchParameter, ...]:
    """Returns the settings that a search varies, which a file contained.

    Args:
        content: expected as [[name, scale, low, high], ...].

    Raises:
        CheckpointError: it is something else.
    """
    if not isinstance(content, list) or not content:
        raise CheckpointError(f"parameters must be a list of settings, got {reprlib.repr(content)}.")
    for each in content:
        if not isinstance(each, list) or len(each) != 4 or not _is_parameter(*each):
            raise CheckpointError(f"parameters must have names, scales and ranges, got {reprlib.repr(each)}.")
    return tuple(SearchParameter(*each) for each in content)


def _is_parameter(name: Any, scale: Any, low: Any, high: Any) -> bool:
    is_range = is_finite_number(low) and is_finite_number(high) and low < high
    return isinstance(name, str) and is_range and (scale == "linear" or (scale == "log" and low > 0))


def read_trials(folder: RunFolder) -> Trials:
    """Reads the trials of a search from its folder, which anybody may have written.

    Args:
        folder: the folder of the search.

    Raises:
        FileNotFoundError: it is not the folder of a search, or no part of the search is finished.
        CheckpointError: a file is damaged.
    """
    record = parse_json(folder.read(SWEEP, MAX_RECORD_BYTES))
    try:
        parameters = parse_parameters(record.get("parameters") if isinstance(record, dict) else None)
    except CheckpointError as error:
        raise CheckpointError(f"{folder.path / SWEEP} is damaged: {error}") from error
    if TRIALS not in folder.file_names():
        raise FileNotFoundError(f"{folder.path} has no {TRIALS}: no part of the search is finished.")
    with folder.open(TRIALS) as file:
        reader = NpzReader(file, str(folder.path / TRIALS))
        columns = read_columns(reader, parameters, (reader.specs.get("part", ((),))[0] or (0,))[0])
    base = record.get("base")
    return Trials(str(base.get("env", "?"))[:80] if isinstance(base, dict) else "?", parameters, *columns)


def read_columns(
    reader: NpzReader, parameters: Sequence[SearchParameter], count: int, prefix: str = ""
) -> tuple[dict[str, FloatArray], FloatArray, NDArray[np.int64]]:
    """Returns the values, the scores and the parts of the trials in a file, as `Trials` has them.

    Args:
        reader: the file, which anybody may have written.
        parameters: the settings that were varied.
        count: N.
        prefix: of the names of the arrays.

    Raises:
        CheckpointError: an array is missing, or is not of so many numbers.
    """
    expected = {
        **dict.fromkeys((*(each.name for each in parameters), "score"), ((count,), np.float64)),
        "part": ((count,), np.int64),
    }
    values = reader.read_expected(expected, prefix)
    return values, values.pop("score"), values.pop("part")
