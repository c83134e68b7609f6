"""The numbers of all agents over the training, and their file. This module imports no torch.

Letters: P agents, I iterations.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.population.population_args import FAULTS, MAX_AGENTS, METRICS, RUNNING
from gpuvec.learners.runs.archives import NpzReader
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import POPULATION

FloatArray = NDArray[np.float64]
FINAL_PART = 0.1  # of the iterations, at their end, over which returns are averaged if there is no evaluation
FORMAT = 1  # the version of the structure of the file, increased by each change that makes older ones unreadable
PREFIXES = {"metrics": "metric", "settings": "setting", "params": "param"}  # of the names of arrays in the file


class PopulationHistory(NamedTuple):
    """The numbers of all agents over the training."""

    steps: NDArray[np.int64]  # (I,): environment steps of an agent so far
    seconds: FloatArray  # (I,): of training so far
    metrics: dict[str, NDArray[np.float32]]  # {name of `METRICS`, or `EVAL_RETURN`: (I, P)}; nan where there is no number
    seeds: NDArray[np.int64]  # (P,)
    settings: dict[str, FloatArray]  # {setting: (P,)} of those in which agents differ, at the end of the training
    params: dict[str, FloatArray]  # {parameter of the environment: (P,)} of those in which agents differ
    stopped_at: NDArray[np.int64]  # (P,): the iteration in which an agent was stopped; -1 for none
    fault: NDArray[np.int64]  # (P,): the number in `FAULTS` of what was not finite then

    @property
    def num_agents(self) -> int:
        """P."""
        return len(self.seeds)

    @property
    def hyperparameters(self) -> dict[str, FloatArray]:
        """{name: (P,)}: the settings and the parameters of the environment, "params.gravity", in which agents differ."""
        return {**self.settings, **{f"params.{name}": column for name, column in self.params.items()}}

    def final_returns(self) -> FloatArray:
        """Returns the return of each agent in its last evaluation, (P,).

        Before the first evaluation, of a training that was stopped, it is the mean of `last_return` over the last tenth of the
        iterations, as far as each environment of the agent has ended an episode; nan without any, and for agents that were
        stopped.
        """
        returns = self.metrics[EVAL_RETURN].astype(np.float64)
        is_number = np.isfinite(returns)
        last = len(returns) - 1 - is_number[::-1].argmax(0)
        evaluated = returns[last, np.arange(returns.shape[1])]
        first = min(len(returns) - 1, int(len(returns) * (1.0 - FINAL_PART)))
        is_unbiased = self.metrics["last_return_share"][first:] == 1.0
        sums = np.where(is_unbiased, self.metrics["last_return"][first:].astype(np.float64), 0.0).sum(0)
        trained = np.where(is_unbiased.any(0), sums / np.maximum(is_unbiased.sum(0), 1), np.nan)
        return np.where(self.stopped_at != RUNNING, np.nan, np.where(is_number.any(0), evaluated, trained))

    def steps_to(self, threshold: float) -> FloatArray:
        """Returns the environment steps before the first evaluation that reached a threshold, (P,); nan for none.

        Args:
            threshold: for the mean return of an evaluation; nan is never reached.
        """
        is_reached = self.metrics[EVAL_RETURN] >= threshold
        return np.where(is_reached.any(0), self.steps[is_reached.argmax(0)], np.nan)

    def ranking(self) -> list[int]:
        """Returns the numbers of the agents by their final return, the best first; those without one are last."""
        returns = self.final_returns()
        order = np.argsort(-np.where(np.isnan(returns), -np.inf, returns), kind="stable")
        return [int(k) for k in order]

    def continued_by(self, rest: PopulationHistory) -> PopulationHistory:
        """Returns the history of this training and of one that continued it.

        Args:
            rest: the history of the training that continued from the end of this one.
        """
        seconds = np.concatenate([self.seconds, self.seconds[-1] + rest.seconds])
        metrics = {name: np.concatenate([column, rest.metrics[name]]) for name, column in self.metrics.items()}
        return rest._replace(steps=np.concatenate([self.steps, rest.steps]), seconds=seconds, metrics=metrics)

    def fault_texts(self) -> list[str]:
        """Returns a sentence for each agent that was stopped."""
        return [
            f"agent {k} was stopped in iteration {self.stopped_at[k]}: {FAULTS[self.fault[k]]} was not finite."
            for k in np.flatnonzero(self.stopped_at != RUNNING)
        ]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns {name: array} as the file has them."""
        groups = {name: getattr(self, name) for name in PREFIXES}
        nested = {f"{PREFIXES[group]}.{name}": x for group, columns in groups.items() for name, x in columns.items()}
        return {name: x for name, x in self._asdict().items() if name not in PREFIXES} | nested


def read_history(reader: NpzReader, num_agents: int, prefix: str = "") -> PopulationHistory:
    """Reads a history from a file that anybody may have written.

    Args:
        reader: the file.
        num_agents: P.
        prefix: of the names of the arrays.

    Raises:
        CheckpointError: the file is damaged, or has not the history of so many agents.
    """
    reader.require(f"{prefix}steps", None, np.int64)
    by_iteration = (reader.specs[f"{prefix}steps"][0] or (0,))[0]
    expected: dict[str, tuple[tuple[int, ...], type]] = {"steps": ((by_iteration,), np.int64)}
    expected |= {"seconds": ((by_iteration,), np.float64)}
    expected |= {f"metric.{name}": ((by_iteration, num_agents), np.float32) for name in (*METRICS, EVAL_RETURN)}
    expected |= dict.fromkeys(("seeds", "stopped_at", "fault"), ((num_agents,), np.int64))
    names = [name.removeprefix(prefix) for name in reader.specs if name.startswith(prefix)]
    columns = [name for name in names if name.startswith(("setting.", "param."))]
    expected |= dict.fromkeys(columns, ((num_agents,), np.float64))
    arrays = reader.read_expected(expected, prefix)
    groups: dict[str, Any] = {}
    for group, start in PREFIXES.items():
        groups[group] = {name.removeprefix(f"{start}."): x for name, x in arrays.items() if name.startswith(f"{start}.")}
    own: dict[str, Any] = {name: arrays[name] for name in PopulationHistory._fields if name not in PREFIXES}
    history = PopulationHistory(**own, **groups)
    if not len(history.steps) or (np.diff(history.steps, prepend=0) < 1).any():
        raise reader.error(f"{prefix}steps must be numbers above 0 that ascend")
    if not np.isfinite(history.seconds).all() or (np.diff(history.seconds, prepend=0.0) < 0.0).any():
        raise reader.error(f"{prefix}seconds must be numbers of at least 0 that do not descend")
    if history.fault.min() < 0 or history.fault.max() >= len(FAULTS):
        raise reader.error(f"{prefix}fault has a number that is not known")
    return history


def read_population_record(folder: RunFolder) -> dict[str, Any]:
    """Returns the record of the file of a population: its settings, and how far it has come.

    Args:
        folder: the folder of the population.

    Raises:
        FileNotFoundError: the folder is not that of a population.
        CheckpointError: the file is damaged, or of another version.
    """
    with open_population(folder) as (_, record):
        return record


@contextmanager
def open_population(folder: RunFolder) -> Iterator[tuple[NpzReader, dict[str, Any]]]:
    """Opens the file of a population.

    Args:
        folder: the folder of the population.

    Yields:
        The file and its record, which has the settings that all agents share as "base", and as "num_agents" a number of agents.

    Raises:
        FileNotFoundError: the folder is not that of a population.
        CheckpointError: the file is damaged, or of another version.
    """
    try:
        file = folder.open(POPULATION)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder.path} is not the folder of a population: it has no {POPULATION}. `gpuvec train --population` creates one."
        ) from None
    with file:
        reader = NpzReader(file, str(folder.path / POPULATION))
        record = reader.record()
        if record.get("format") != FORMAT:
            raise CheckpointError(
                f"{reader.name} has the format {reprlib.repr(record.get('format'))}; this gpuvec reads {FORMAT}: use the "
                "version that wrote it."
            )
        num_agents = record.get("num_agents")
        if not isinstance(record.get("base"), dict) or type(num_agents) is not int or not 1 <= num_agents <= MAX_AGENTS:
            raise reader.error(f"its record must have settings, and from 1 to {MAX_AGENTS:,} agents")
        yield reader, record


def read_population_history(folder: RunFolder) -> tuple[dict[str, Any], PopulationHistory]:
    """Returns the settings that all agents of a population share, and the numbers of its agents.

    Args:
        folder: the folder of the population.

    Raises:
        FileNotFoundError: the folder is not that of a population.
        CheckpointError: the file is damaged, or of another version.
    """
    with open_population(folder) as (reader, record):
        return record["base"], read_history(reader, record["num_agents"])
