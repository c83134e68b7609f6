"""Selects resets and steps of a compiled run that plain Python repeats: those around rare states first, then random ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import chain, islice, takewhile, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.layout.buffers import NO_STEP_LIMIT
from gpuvec.random import Key
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, metrics_of

MAX_VALUES = 16  # the number of values of an integer field around which a moment is selected


class Moment(NamedTuple):
    """A reset or a step of one environment, with the states before and after it."""

    t: int  # the number of the call, 0 for the first reset
    row: int  # the index of the environment
    key: Key
    before: dict[str, NDArray[Any]]  # {field: (...) array}; for a reset the same as `after`
    after: dict[str, NDArray[Any]]
    action: NDArray[Any] | None  # (...) or (..., K); None for a reset
    limit: int  # the number of steps of an episode
    metrics_before: Mapping[str, Any]  # {name: value} of the metrics up to the step before

    def place(self) -> str:
        """Describes the moment for messages."""
        if self.key.step == 0:
            return f"in the reset of environment {self.row} after {self.t} steps"
        return f"in step {self.t} of environment {self.row}, step {self.key.step} of its episode"


class RunMoments:
    """The resets and steps of a run.

    Args:
        run: the results.
        seed: the seed with which the run was reset.
    """

    def __init__(self, run: CompiledRun, seed: int) -> None:
        self.run, self._seed = run, seed
        num_calls, num_envs = len(run.obs), len(run.obs[0])
        # (T + 2, E) the number of a step in its episode, 0 for a reset, and that of the episode. The last row is of the call
        # after the run.
        self._all_times, self._episodes = (np.zeros((num_calls + 1, num_envs), int) for _ in range(2))
        for t in range(1, num_calls + 1):
            # The number of an episode is that of the step that resets the environment.
            over = (run.terminated[t - 2] | run.truncated[t - 2]) if t > 1 else np.zeros(num_envs, bool)
            self._episodes[t] = np.where(over, t, self._episodes[t - 1])
            self._all_times[t] = np.where(over, 0, self._all_times[t - 1] + 1)
        self.times = self._all_times[:-1]  # (T + 1, E)

    def at(self, t: int, row: int) -> Moment:
        """Returns a reset or step of the run.

        Args:
            t: the number of the call, 0 for the first reset; that after the last one has no results.
            row: the index of the environment.
        """
        run, time = self.run, int(self._all_times[t, row])
        key = Key(self._seed & 0xFFFFFFFF, self._seed >> 32, row, int(self._episodes[t, row]), time)
        after = {k: v[row] for k, v in run.states[t].items()} if t < len(run.states) else {}
        before = {k: v[row] for k, v in run.states[t - 1].items()} if time > 0 or not after else after
        action = run.actions[t - 1, row] if time > 0 else None
        metrics = {name: values[row] for name, values in metrics_of(run.infos[t - 2]).items()} if time > 1 else {}
        return Moment(t, row, key, before, after, action, run.limit or NO_STEP_LIMIT, metrics)

    def select(self, count: int, seconds: float = 0.0) -> Iterator[tuple[int, int]]:
        """Selects moments: some in any case, ordered by time, then further ones while there is time.

        Args:
            count: the number of moments that are selected in any case, those around rare states first.
            seconds: the CPU seconds of this thread for which further moments are selected, in random order.

        Yields:
            (t, row) of each, the arguments of `at`.
        """
        order = self.order()
        yield from sorted(islice(order, count))
        start = time.thread_time()
        yield from takewhile(lambda _: time.thread_time() - start < seconds, order)

    def order(self) -> Iterator[tuple[int, int]]:
        """Yields (t, row) of all moments, those around rare states first, then all others in random order."""
        permutation = np.random.default_rng(self._seed).permutation(self.times.size)
        others = ((int(k) // self.times.shape[1], int(k) % self.times.shape[1]) for k in permutation)
        yielded: set[tuple[int, int]] = set()
        for place in chain(self._rare(), others):
            if place not in yielded:
                yielded.add(place)
                yield place

    def _rare(self) -> Iterator[tuple[int, int]]:
        """Yields (t, row) around the extremes of each float field, around values of integer fields, and at ends of episodes."""
        run = self.run
        fields = [np.stack([state[name] for state in run.states]) for name in run.states[0]]
        for places in zip_longest(*map(_extremes, fields)):
            for t, row in (place for place in places if place is not None):
                yield t, row
                if t + 1 < len(self.times) and self.times[t + 1, row] > 0:
                    yield t + 1, row
        for ended in filter(None, (run.terminated, run.truncated)):
            for t, row in np.argwhere(np.stack(ended))[:MAX_VALUES].tolist():
                yield t + 1, row


def _extremes(values: NDArray[Any]) -> list[tuple[int, int]]:
    """(t, row) where a float field (T + 1, E, ...) has its extremes, or where an integer field first has each of its values."""
    flat = values.reshape(-1)
    if values.dtype.kind == "f":
        places = [int(flat.argmax()), int(flat.argmin())]
    else:
        _, first = np.unique(flat, return_index=True)
        selected = np.unique(np.linspace(0, len(first) - 1, MAX_VALUES).astype(int))[::-1]
        places = first[selected].tolist()
    size = flat.size // (values.shape[0] * values.shape[1])
    return [(k // size // values.shape[1], k // size % values.shape[1]) for k in places]
