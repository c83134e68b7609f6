"""Returns and lengths of the episodes that end within a rollout, computed on the device from the rollout alone.

The mean of the episodes that end in a rollout prefers short episodes. The last finished episode of each row does not: from the
time on at which the longest episode can have ended, its distribution is that of an episode (design/0061).

Letters: T steps, R rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher, TensorSpec

f32, f64, i64, b1 = np.float32, np.float64, np.int64, np.bool_
UNROLLED_STEPS = 8
Sums = tuple[np.float64, np.float64, np.float64, np.float64, np.float64, np.float64]


class EpisodeStatistics(NamedTuple):
    """The state of running episodes between two rollouts; all (R,) float64, in which counts of steps are exact."""

    running_return: Tensor
    """Undiscounted return of the running episode so far."""
    running_length: Tensor
    """Its steps so far in which the row acted."""
    last_return: Tensor
    """Return of a row's last finished episode; nan before the first."""

    @classmethod
    def initial(cls, rows: int, device: torch.device | str) -> EpisodeStatistics:
        """Returns the statistics at the beginning of `rows` episodes, R, on `device`."""
        zeros = torch.zeros(2, rows, dtype=torch.float64, device=device)
        return cls(zeros[0], zeros[1], torch.full_like(zeros[0], torch.nan))

    def add(self, reward: Tensor, ended: Tensor, mask: Tensor | None = None) -> Tensor:
        """Adds a rollout, and updates these tensors in place.

        Args:
            reward: (T, R), 0 outside episodes.
            ended: (T, R) bool: the last step of an episode; none outside episodes.
            mask: (T, R) bool: the steps that count for the length, in which the row acted; None for all.

        Returns:
            (6, R) float64, whose sums over rows `episode_metrics` takes: the number of episodes that ended in each row, the
            sums of their returns and of their lengths, the return of its last finished episode or 0, whether an episode has
            ended in it, and whether it has acted.
        """
        T, R = reward.shape
        sums = torch.empty(6, R, dtype=torch.float64, device=reward.device)
        tensors: dict[str, Tensor | None] = {"reward": reward, "ended": ended, "mask": mask, **self._asdict(), "sums": sums}
        expected: dict[str, TensorSpec] = {"reward": ((T, R), torch.float32), "sums": ((6, R), torch.float64)}
        expected |= dict.fromkeys(("ended", "mask"), ((T, R), torch.bool))
        expected |= dict.fromkeys(self._fields, ((R,), torch.float64))
        kernel = EPISODES if mask is None else MASKED_EPISODES
        ElementwiseLauncher(str(reward.device))(kernel, R, tensors, expected, [T])
        return sums


def _make_row(ops: MemoryOps, has_mask: bool) -> DeviceFunction:
    """Returns the function of a row, which visits its steps in their order."""
    load, store = ops.load, ops.store

    @inline_function
    def add_step(b: Batch, index: int, state: Sums) -> Sums:
        """Adds a step without a branch, so that the loads of several steps overlap."""
        running_return, running_length, last_return, episodes, returns, lengths = state
        acts, ends = not has_mask or load(b.mask, index, b1), load(b.ended, index, b1)
        running_return += f64(load(b.reward, index, f32))
        running_length += f64(1.0) if acts else f64(0.0)
        episodes += f64(1.0) if ends else f64(0.0)
        returns += running_return if ends else f64(0.0)
        lengths += running_length if ends else f64(0.0)
        last_return = running_return if ends else last_return
        running_return = f64(0.0) if ends else running_return
        return running_return, f64(0.0) if ends else running_length, last_return, episodes, returns, lengths

    @inline_function
    def count_row(b: Batch, row: int) -> None:
        none = f64(0.0)
        state = (
            load(b.running_return, row, f64),
            load(b.running_length, row, f64),
            load(b.last_return, row, f64),
            none,
            none,
            none,
        )
        t = i64(0)
        while t + i64(UNROLLED_STEPS) <= b.steps:
            for k in range(UNROLLED_STEPS):
                state = add_step(b, (t + k) * b.n + row, state)
            t += i64(UNROLLED_STEPS)
        while t < b.steps:
            state = add_step(b, t * b.n + row, state)
            t += i64(1)
        running_return, running_length, last_return, episodes, returns, lengths = state
        store(b.running_return, row, running_return, f64)
        store(b.running_length, row, running_length, f64)
        store(b.last_return, row, last_return, f64)
        has_ended = last_return == last_return  # not nan
        store(b.sums, row, episodes, f64)
        store(b.sums, b.n + row, returns, f64)
        store(b.sums, i64(2) * b.n + row, lengths, f64)
        store(b.sums, i64(3) * b.n + row, last_return if has_ended else f64(0.0), f64)
        store(b.sums, i64(4) * b.n + row, f64(has_ended), f64)
        store(b.sums, i64(5) * b.n + row, f64(has_ended or running_length > f64(0.0)), f64)

    row: DeviceFunction = count_row
    return row


MEMBERS = ("reward", "ended", "mask", *EpisodeStatistics._fields, "sums", "steps")
EPISODES, MASKED_EPISODES = (
    Elementwise(name, MEMBERS, _make_row, (has_mask,), threads=32)  # blocks are small, because there are few rows
    for name, has_mask in (("episodes", False), ("masked episodes", True))
)


def episode_metrics(sums: Tensor) -> Tensor:
    """Returns the metrics `metric_names.EPISODE_METRICS`, (5, ...) float64.

    Args:
        sums: (6, ...): sums over rows of what `EpisodeStatistics.add` returns.
    """
    episodes, returns, lengths, last_returns, ended_rows, acted_rows = sums
    means = [returns / episodes, lengths / episodes, last_returns / ended_rows]
    return torch.stack([episodes, *means, ended_rows / acted_rows])
