"""Which moments of a compiled run are looked at again in plain Python: those with rare states first, then any."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.layout.buffers import NO_STEP_LIMIT
from gpuvec.random import Key
from gpuvec.testing.compiled_runs.compiled_run import Run

VALUES = 16  # of an integer field, each of which is looked at


class Moment(NamedTuple):
    """What one row was before and after a reset or a step."""

    t: int  # calls of `step` before
    row: int
    key: Key
    before: dict[str, Any]  # {field: (...)}; of a reset what the last episode left, or what the reset made
    after: dict[str, Any]
    action: Any
    limit: int  # steps of an episode


class Moments:
    """The moments of a run that was seeded by `seed`."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self._seed = run, seed
        rows = len(run.obs[0])
        self.times = np.zeros((len(run.obs), rows), int)  # within the episode; 0 in a reset
        self._episodes = np.zeros((len(run.obs), rows), int)
        for t in range(1, len(run.obs)):  # an episode is numbered by the step that resets it
            over = (run.terminated[t - 2] | run.truncated[t - 2]) if t > 1 else np.zeros(rows, bool)
            self._episodes[t] = np.where(over, t, self._episodes[t - 1])
            self.times[t] = np.where(over, 0, self.times[t - 1] + 1)

    def at(self, t: int, row: int) -> Moment:
        """The moment after t calls of `step`, in that row."""
        run, time = self.run, int(self.times[t, row])
        key = Key(self._seed & 0xFFFFFFFF, self._seed >> 32, row, int(self._episodes[t, row]), time)
        after = {k: v[row] for k, v in run.states[t].items()}
        before = {k: v[row] for k, v in run.states[t - 1].items()} if time > 0 else after
        action = run.actions[t - 1, row] if time > 0 else None
        return Moment(t, row, key, before, after, action, run.limit or NO_STEP_LIMIT)

    def following(self, row: int) -> Moment:
        """The moment after the last one of that row, whose result is not there; an action is, unless it is a reset."""
        run, t = self.run, len(self.run.obs)
        over = bool(t > 1 and (run.terminated[-1][row] | run.truncated[-1][row]))
        time, episode = (0, t) if over else (int(self.times[-1, row]) + 1, int(self._episodes[-1, row]))
        key = Key(self._seed & 0xFFFFFFFF, self._seed >> 32, row, episode, time)
        before = {k: v[row] for k, v in run.states[-1].items()}
        return Moment(t, row, key, before, {}, run.actions[t - 1, row], run.limit or NO_STEP_LIMIT)

    def chosen(self, count: int) -> list[tuple[int, int]]:
        """(t, row) of at most `count` moments, of those with rare states before others."""
        rng = np.random.default_rng(self._seed)
        anywhere = rng.permutation(self.times.size)
        others = ((int(k) // self.times.shape[1], int(k) % self.times.shape[1]) for k in anywhere[: 2 * count])
        found = dict.fromkeys(chain(self._rare(), others))
        return list(found)[:count]

    def _rare(self) -> Iterator[tuple[int, int]]:
        """Of each field the moments around its least and greatest values, and of integers around each value."""
        run = self.run
        fields = [np.stack([state[name] for state in run.states]) for name in run.states[0]]
        for places in zip_longest(*map(_extremes, fields)):
            for t, row in (place for place in places if place is not None):
                yield t, row
                if t + 1 < len(self.times) and self.times[t + 1, row] > 0:
                    yield t + 1, row
        ended = [name for name in ("terminated", "truncated") if getattr(run, name)]
        for name in ended:
            for t, row in np.argwhere(np.stack(getattr(run, name)))[:VALUES].tolist():
                yield t + 1, row


def _extremes(values: Any) -> list[tuple[int, int]]:
    """(t, row) where a (T + 1, E, ...) field is least and greatest, and where integers have other values."""
    flat = values.reshape(-1)
    if values.dtype.kind == "f":
        places = [int(flat.argmax()), int(flat.argmin())]
    else:
        _, first = np.unique(flat, return_index=True)
        picked = np.unique(np.linspace(0, len(first) - 1, VALUES).astype(int))[::-1]
        places = first[picked].tolist()
    size = flat.size // (values.shape[0] * values.shape[1])
    return [(k // size // values.shape[1], k // size % values.shape[1]) for k in places]
