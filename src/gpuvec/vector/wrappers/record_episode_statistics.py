"""Returns and lengths of episodes, counted on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import InvalidBound
from gymnasium.vector import AutoresetMode, VectorEnv

from gpuvec.vector.host_copies import to_host
from gpuvec.vector.wrappers.base import Out, StatefulWrapper, Step, autoreset_mode, reset_mask
from gpuvec.vector.wrappers.namespace import WrapperError
from gpuvec.vector.wrappers.wrapper_state import WrapperState

PER_ROW = ("running_return", "running_length", "over")


class EpisodeSummary(NamedTuple):
    """What was known of finished episodes when it was read; N <= ring episodes, the oldest first."""

    episodes: int  # finished episodes since the wrapper was made
    mean_return: float  # over the N episodes; nan if there are none
    mean_length: float  # in steps
    returns: np.ndarray[Any, Any]  # (N,) float32
    lengths: np.ndarray[Any, Any]  # (N,) int32, in steps


class RecordEpisodeStatistics(StatefulWrapper):
    """Adds `infos["episode"] = {"r": (E,) float32, "l": (E,) int32}` and `infos["_episode"]`, (E,) bool, to every step.

    "r" is the undiscounted return and "l" the length in steps of the episode that ended in this step, 0 where none did.
    The last `ring` finished episodes stay on the device until `statistics()` reads them. A NEXT_STEP reset step belongs
    to no episode; under DISABLED a finished row counts nothing until its reset. A masked reset drops the running
    episodes of its rows, a full one all; neither touches the ring.

    Unlike in Gymnasium's wrapper there is no "t", the time taken: the host does not know when the device ends an episode.

    Args:
        ring: how many finished episodes to keep.
        stats_key: the name in infos.

    Raises:
        gymnasium.error.InvalidBound: `ring` < 1.
        WrapperError: the environment's metadata has no autoreset mode, or (in `step`) its infos use the name already.
    """

    def __init__(self, env: VectorEnv, ring: int = 100, stats_key: str = "episode") -> None:
        if ring < 1:
            raise InvalidBound(f"ring must be at least 1 episode, got {ring}.")
        n = env.num_envs
        super().__init__(
            env,
            WrapperState(
                running_return=np.zeros(n, np.float32),
                running_length=np.zeros(n, np.int32),
                over=np.zeros(n, np.bool_),  # the episode has ended and the row awaits its reset
                ring_return=np.zeros(ring, np.float32),
                ring_length=np.zeros(ring, np.int32),
                slot=np.arange(1, ring + 1),  # episode n, from 1, falls to slot n modulo ring
                count=np.array(0),
            ),
        )
        self._mode, self._ring, self._key = autoreset_mode(env), ring, stats_key

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets; running episodes of the rows that are reset are dropped."""
        obs, info = super().reset(seed=seed, options=options)
        self._buffers.clear(reset_mask(options, self._buffers), *PER_ROW)
        return obs, info

    def step(self, actions: Any, out: Out = None) -> Step:
        """Steps and counts."""
        obs, reward, terminated, truncated, info = super().step(actions, out)
        if self._key in info:
            raise WrapperError(f"infos have {self._key!r} already: give this wrapper another stats_key.")
        b = self._buffers
        b.place(reward)
        xp, live = b.ns.xp, ~b["over"]
        mask = info.get("agent_mask")
        if mask is not None and mask.ndim == 1:  # FlattenAgents: who has left waits for the env's next episode
            live = live & mask
        total = b["running_return"] + xp.where(live, b.ns.float32(reward), 0)
        length = b["running_length"] + live
        ended = live & (terminated | truncated)
        episode = {"r": xp.where(ended, total, 0), "l": xp.where(ended, length, 0)}
        b["running_return"], b["running_length"] = xp.where(ended, 0, total), xp.where(ended, 0, length)
        if self._mode is not AutoresetMode.SAME_STEP:
            b["over"] = ended if self._mode is AutoresetMode.NEXT_STEP else b["over"] | ended
        self._keep(episode, ended)
        return obs, reward, terminated, truncated, {**info, self._key: episode, f"_{self._key}": ended}

    def statistics(self) -> EpisodeSummary:
        """The finished episodes that the ring holds. Waits for the device: call it once per iteration, not per step."""
        count = int(to_host(self._buffers["count"]))
        oldest = max(count - self._ring, 0)
        order = np.arange(oldest, count) % self._ring
        returns, lengths = (to_host(self._buffers[name])[order] for name in ("ring_return", "ring_length"))
        mean_return, mean_length = (float(x.mean(dtype=np.float64)) if count else float("nan") for x in (returns, lengths))
        return EpisodeSummary(count, mean_return, mean_length, returns, lengths)

    def _keep(self, episode: dict[str, Any], ended: Any) -> None:
        """Writes this step's finished episodes into the ring, in the order of their rows.

        Each slot looks up the row whose episode it takes, so no two rows write to one slot however many end at once.
        """
        b, xp = self._buffers, self._buffers.ns.xp
        ends = xp.cumsum(ended, axis=0)
        count = b["count"] + ends[-1]
        newest = count - (count - b["slot"]) % self._ring  # the number of the last episode that falls to each slot
        number = newest - b["count"]  # among those of this step, from 1; less if it is an older one
        row, new = xp.searchsorted(ends, number), number > 0
        b["ring_return"] = xp.where(new, episode["r"][row], b["ring_return"])
        b["ring_length"] = xp.where(new, episode["l"][row], b["ring_length"])
        b["count"] = count
