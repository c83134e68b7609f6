"""The settings that a search varies, samples of them, and the trials in its folder. This module imports torch where it draws.

Letters: N samples.
"""

from __future__ import annotations

import math
import reprlib
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.population.population_args import AGENT_SETTINGS
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, SWEEP, parse_json

FloatArray = NDArray[np.float64]
SamplerName = Literal["sobol", "random"]
PARAMS_PREFIX = "params."  # of the names of parameters of the environment
TRIALS = "trials.npz"


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
        try:
            with np.load(file, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in (*(each.name for each in parameters), "score", "part")}
        except (ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{folder.path / TRIALS} is damaged: it has not the trials of a search ({error}).") from error
    parts = arrays.pop("part")
    if any(x.shape != (len(parts),) or x.dtype != np.float64 for x in arrays.values()) or parts.dtype.kind != "i":
        raise CheckpointError(f"{folder.path / TRIALS} is damaged: it has not a number for each trial.")
    base = record.get("base")
    env = str(base.get("env", "?"))[:80] if isinstance(base, dict) else "?"
    scores = arrays.pop("score")
    return Trials(env, parameters, arrays, scores, parts.astype(np.int64))
