"""`RecordEpisodeStatistics`: returns and lengths of episodes, counted on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import InvalidBound
from gymnasium.vector import VectorEnv

from gpuvec.declaration_checks import describe_value
from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers.base import (
    Out,
    StatefulWrapper,
    Step,
    WrapperError,
    WrapperState,
    get_autoreset_mode,
)


class EpisodeSummary(NamedTuple):
    """The last N <= `ring` episodes that had ended when the summary was read, the oldest first."""

    episodes: int  # how many episodes have ended since the wrapper was created
    mean_return: float  # over the N episodes; nan if there are none
    mean_length: float  # in steps
    returns: np.ndarray[Any, Any]  # (N,) float32
    lengths: np.ndarray[Any, Any]  # (N,) int32, in steps
    metrics: dict[str, np.ndarray[Any, Any]]  # {name: (N,) float32}, the environment's own metrics


def add_exactly(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns the rounded sum of two arrays of floats, and what rounding took from it (Knuth, 1969, "TwoSum").

    Args:
        a, b: arrays (...).
    """
    total = a + b
    b_added = total - a
    return total, (a - (total - b_added)) + (b - b_added)


class RecordEpisodeStatistics(StatefulWrapper):
    """Adds `infos["episode"] = {"r": (E,) float32, "l": (E,) int32}` and `infos["_episode"]`, (E,) bool, to every step.

    "r" is the undiscounted return and "l" the length in steps of the episode that ended in this step, 0 where none did.
    Returns are summed as two floats, because JAX has no float64 by default, and rounded once.
    The last `ring` finished episodes stay on the device until `statistics()` reads them, with the environment's own
    metrics. A NEXT_STEP reset step belongs to no episode; under DISABLED a finished row counts nothing until its reset. A
    masked reset drops the running episodes of its rows and a full reset those of all rows; neither changes the finished
    episodes.

    Unlike Gymnasium's wrapper this one has no "t", the time taken, because the host does not know when the device ends an
    episode.

    Args:
        env: the environment.
        ring: how many finished episodes to keep.
        stats_key: the name in infos.

    Raises:
        gymnasium.error.InvalidBound: `ring` < 1.
        WrapperError: the environment's metadata has no autoreset mode, or (in `step`) its infos use the name already.
    """

    _episode_arrays = ("running_return", "return_remainder", "running_length", "awaits_reset")

    def __init__(self, env: VectorEnv, ring: int = 100, stats_key: str = "episode") -> None:
        if isinstance(ring, bool) or not isinstance(ring, int | np.integer) or ring < 1:
            raise InvalidBound(f"ring must be at least 1 episode, an integer, got {describe_value(ring)}.")
        num_envs = env.num_envs
        self._metric_names: tuple[str, ...] = getattr(env.unwrapped, "metric_names", ())
        self._rows_per_env = num_envs // env.unwrapped.num_envs  # more than 1 under FlattenAgents
        super().__init__(
            env,
            WrapperState(
                running_return=np.zeros(num_envs, np.float32),
                return_remainder=np.zeros(num_envs, np.float32),  # what float32 cannot add to the return
                running_length=np.zeros(num_envs, np.int32),
                awaits_reset=np.zeros(num_envs, np.bool_),
                ring_return=np.zeros(ring, np.float32),
                ring_length=np.zeros(ring, np.int32),
                **{f"ring_metric_{name}": np.zeros(ring, np.float32) for name in self._metric_names},
                slot=np.arange(1, ring + 1),  # episode n, counted from 1, is stored in slot n modulo ring
                count=np.array(0),
            ),
        )
        self._mode, self._ring, self._key = get_autoreset_mode(env), ring, stats_key

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps the environment and counts.

        Args:
            actions: the actions of all rows.
            out: arrays to write to, as in `gpuvec.VectorEnv.step`.

        Raises:
            WrapperError: the environment's infos use the name already.
        """
        obs, reward, terminated, truncated, info = super().step(actions, out)
        if self._key in info:
            raise WrapperError(f"infos have {self._key!r} already: give this wrapper another stats_key.")
        buffers = self._buffers
        buffers.place(reward)
        xp, counts = buffers.ns.xp, ~buffers["awaits_reset"]
        acted, mask = counts, info.get("agent_mask")
        if mask is not None and mask.ndim == 1:  # under FlattenAgents, where a row may be an agent that is inactive or waits
            acted, counts = counts & mask, counts & info.get("in_episode", mask)
        added = xp.where(counts, buffers.ns.float32(reward), 0) + buffers["return_remainder"]
        total, remainder = add_exactly(buffers["running_return"], added)
        length = buffers["running_length"] + acted
        ended = counts & (terminated | truncated)
        episode = {"r": xp.where(ended, total, 0), "l": xp.where(ended, length, 0)}
        buffers["running_return"], buffers["running_length"] = xp.where(ended, 0, total), xp.where(ended, 0, length)
        buffers["return_remainder"] = xp.where(ended | ~xp.isfinite(total), 0, remainder)
        self._end_episodes(ended)
        # The episodes that ended in this step are written into the ring in the order of their rows. Each slot looks up the row
        # whose episode it stores, so that no two rows write to one slot, however many episodes end.
        num_ended = xp.cumsum(ended, axis=0)
        count = buffers["count"] + num_ended[-1]
        newest = count - (count - buffers["slot"]) % self._ring  # the number of the last episode that belongs to each slot
        number = newest - buffers["count"]  # counted from 1 among those of this step; less than 1 for an earlier episode
        row, is_new = xp.searchsorted(num_ended, number), number > 0
        stored = {"ring_return": episode["r"][row], "ring_length": episode["l"][row]}
        stored |= {f"ring_metric_{name}": info["metrics"][name][row // self._rows_per_env] for name in self._metric_names}
        for name, values in stored.items():
            buffers[name] = xp.where(is_new, values, buffers[name])
        buffers["count"] = count
        return obs, reward, terminated, truncated, {**info, self._key: episode, f"_{self._key}": ended}

    def statistics(self) -> EpisodeSummary:
        """Returns the last finished episodes. This waits for the device: call it once per iteration, not in every step."""
        count = int(to_host(self._buffers["count"]))
        first = max(count - self._ring, 0)
        order = np.arange(first, count) % self._ring
        returns, lengths = (to_host(self._buffers[name])[order] for name in ("ring_return", "ring_length"))
        metrics = {name: to_host(self._buffers[f"ring_metric_{name}"])[order] for name in self._metric_names}
        mean_return, mean_length = (float(x.mean(dtype=np.float64)) if count else float("nan") for x in (returns, lengths))
        return EpisodeSummary(count, mean_return, mean_length, returns, lengths, metrics)
