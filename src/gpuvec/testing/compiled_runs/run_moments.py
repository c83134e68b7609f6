"""Which resets and steps of a compiled run plain Python repeats: those around rare states first, then random ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.layout.buffers import NO_STEP_LIMIT
from gpuvec.random import Key
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun

MAX_VALUES = 16  # of an integer field, around each of which a moment is selected


class Moment(NamedTuple):
    """A reset or a step of one environment, with the states before and after it."""

    t: int  # calls of `step` before
    row: int
    key: Key
    before: dict[str, NDArray[Any]]  # {field: (...)}; in a reset equal to `after`
    after: dict[str, NDArray[Any]]
    action: NDArray[Any] | None  # (...) or (..., K); None in a reset
    limit: int  # steps of an episode


class RunMoments:
    """The moments of a run.

    Args:
        run: the results.
        seed: that the run was reset with.
    """

    def __init__(self, run: CompiledRun, seed: int) -> None:
        self.run, self._seed = run, seed
        num_envs = len(run.obs[0])
        self.times = np.zeros((len(run.obs), num_envs), int)  # (T + 1, E) steps of the episode; 0 in a reset
        self._episodes = np.zeros((len(run.obs), num_envs), int)  # (T + 1, E)
        for t in range(1, len(run.obs)):  # an episode has the number of the step that resets it
            over = (run.terminated[t - 2] | run.truncated[t - 2]) if t > 1 else np.zeros(num_envs, bool)
            self._episodes[t] = np.where(over, t, self._episodes[t - 1])
            self.times[t] = np.where(over, 0, self.times[t - 1] + 1)

    def at(self, t: int, row: int) -> Moment:
        """The reset or step that is call number `t` of environment `row`; number 0 is the first reset."""
        run, time = self.run, int(self.times[t, row])
        key = Key(self._seed & 0xFFFFFFFF, self._seed >> 32, row, int(self._episodes[t, row]), time)
        after = {k: v[row] for k, v in run.states[t].items()}
        before = {k: v[row] for k, v in run.states[t - 1].items()} if time > 0 else after
        action = run.actions[t - 1, row] if time > 0 else None
        return Moment(t, row, key, before, after, action, run.limit or NO_STEP_LIMIT)

    def following(self, row: int) -> Moment:
        """The reset or step of environment `row` after the last one of the run, of which there is no result."""
        run, t = self.run, len(self.run.obs)
        over = bool(t > 1 and (run.terminated[-1][row] | run.truncated[-1][row]))
        time, episode = (0, t) if over else (int(self.times[-1, row]) + 1, int(self._episodes[-1, row]))
        key = Key(self._seed & 0xFFFFFFFF, self._seed >> 32, row, episode, time)
        before = {k: v[row] for k, v in run.states[-1].items()}
        return Moment(t, row, key, before, {}, run.actions[t - 1, row], run.limit or NO_STEP_LIMIT)

    def select(self, count: int) -> list[tuple[int, int]]:
        """(t, row) of at most `count` moments, those around rare states before others."""
        rng = np.random.default_rng(self._seed)
        permutation = rng.permutation(self.times.size)
        others = ((int(k) // self.times.shape[1], int(k) % self.times.shape[1]) for k in permutation[: 2 * count])
        selected = dict.fromkeys(chain(self._rare(), others))
        return list(selected)[:count]

    def _rare(self) -> Iterator[tuple[int, int]]:
        """Moments around the least and greatest value of each float field, around values of integers, and ends of episodes."""
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
    """(t, row) where a (T + 1, E, ...) field is least and greatest, or where an integer field first has a value."""
    flat = values.reshape(-1)
    if values.dtype.kind == "f":
        places = [int(flat.argmax()), int(flat.argmin())]
    else:
        _, first = np.unique(flat, return_index=True)
        selected = np.unique(np.linspace(0, len(first) - 1, MAX_VALUES).astype(int))[::-1]
        places = first[selected].tolist()
    size = flat.size // (values.shape[0] * values.shape[1])
    return [(k // size // values.shape[1], k // size % values.shape[1]) for k in places]
