"""The numbers of all agents over the training, and their file. This module imports no torch.

Letters: P agents, I iterations.
"""

from __future__ import annotations

import zipfile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import CheckpointError
from gpuvec.learners.metric_names import EVAL_RETURN
from gpuvec.learners.population.agent_metrics import FAULTS, METRICS, RUNNING
from gpuvec.learners.population.results.npz_content import to_npz
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import MAX_RECORD_BYTES, POPULATION, POPULATION_HISTORY, parse_json

FloatArray = NDArray[np.float64]
FINAL_PART = 0.1  # of the iterations, at their end, over which returns are averaged if there is no evaluation
MAX_ELEMENTS = 2**31  # of an array in a file
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


def history_to_npz(history: PopulationHistory) -> bytes:
    """Returns the content of an npz file of a history.

    Args:
        history: the history.
    """
    return to_npz(history.arrays())


def read_history(file: IO[bytes], name: str) -> PopulationHistory:
    """Reads a history from an npz file that anybody may have written.

    Args:
        file: the file.
        name: what messages call it.

    Raises:
        CheckpointError: the file is damaged, or is not the history of a population.
    """
    try:
        with np.load(file, allow_pickle=False) as saved:
            arrays = {key: saved[key] for key in saved.files}
    except (ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{name} is damaged: it is not an npz file of arrays ({error}).") from error
    return history_from_arrays(arrays, name)


def history_from_arrays(arrays: dict[str, NDArray[Any]], name: str) -> PopulationHistory:
    """Returns the history that has the arrays of a file that anybody may have written.

    Args:
        arrays: {name: array}, as `PopulationHistory.arrays` returns them.
        name: what messages call the file.

    Raises:
        CheckpointError: they are not those of the history of a population.
    """
    try:
        return _parse(arrays)
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{name} is not the history of a population: {error}.") from error


def _parse(arrays: dict[str, NDArray[Any]]) -> PopulationHistory:
    """Returns a history; raises KeyError or ValueError unless the arrays have its names, shapes and dtypes."""
    groups: dict[str, Any] = {}
    for group, prefix in PREFIXES.items():
        names = [name for name in arrays if name.startswith(f"{prefix}.")]
        groups[group] = {name.removeprefix(f"{prefix}."): arrays[name] for name in names}
    own: dict[str, Any] = {name: arrays[name] for name in PopulationHistory._fields if name not in PREFIXES}
    history = PopulationHistory(**own, **groups)
    iterations, agents = len(history.steps), len(history.seeds)
    if missing := [name for name in (*METRICS, EVAL_RETURN) if name not in history.metrics]:
        raise ValueError(f"there is no metric {missing[0]}")
    expected = {f"metric.{name}": (iterations, agents) for name in history.metrics} | {"steps": (iterations,)}
    for name, x in history.arrays().items():
        shape = expected.get(name, (iterations,) if name == "seconds" else (agents,))
        if x.shape != shape or x.dtype.kind not in "iuf" or not iterations or not agents:
            raise ValueError(f"{name} must have shape {shape}, got {x.shape} of {x.dtype}")
    if history.fault.min() < 0 or history.fault.max() >= len(FAULTS):
        raise ValueError("fault has a number that is not known")
    return history


def read_population_history(folder: RunFolder) -> tuple[dict[str, Any], PopulationHistory]:
    """Returns the settings that all agents of a population share, and the numbers of its agents.

    Args:
        folder: the folder of the population.

    Raises:
        FileNotFoundError: the folder is not that of a population.
        CheckpointError: a file is damaged.
    """
    try:
        record = parse_json(folder.read(POPULATION, MAX_RECORD_BYTES))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder.path} is not the folder of a population: it has no {POPULATION}. `gpuvec train --population` creates one."
        ) from None
    base = record.get("base") if isinstance(record, dict) else None
    if not isinstance(base, dict):
        raise CheckpointError(
            f"{folder.path / POPULATION} is damaged: it is not a JSON object with the settings of a population."
        )
    with folder.open(POPULATION_HISTORY) as file:
        return base, read_history(file, str(folder.path / POPULATION_HISTORY))
