"""Returns and lengths of the episodes that end within a rollout, computed on the device from the rollout alone.

All rewards of a row up to the last end of an episode belong to episodes that ended, and the others to the running episode. Sums
over a rollout therefore need no loop over steps.

The mean of the episodes that end in a rollout prefers short episodes. The last finished episode of each row does not: from the
time on at which the longest episode can have ended, its distribution is that of an episode (design/0061).

Letters: T steps, R rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
        steps = torch.arange(1, len(reward) + 1, device=reward.device, dtype=torch.int32).unsqueeze(1)
        end_steps = ended * steps
        last_end = end_steps.amax(0)  # (R,): steps up to and with the last end, 0 if there is none
        end_before = torch.where(end_steps < last_end, end_steps, 0).amax(0)  # the same of the end before it
        in_ended, any_end = steps <= last_end, last_end > 0
        ended_return, last_return, rest_return = (
            (reward * steps_of).sum(0, dtype=torch.float64)
            for steps_of in (in_ended, in_ended & (steps > end_before), ~in_ended)
        )
        ended_steps, rest_steps = last_end, len(reward) - last_end
        if mask is not None:
            ended_steps, rest_steps = (mask & in_ended).sum(0), (mask & ~in_ended).sum(0)
        returns = torch.where(any_end, self.running_return + ended_return, 0.0)
        lengths = torch.where(any_end, self.running_length + ended_steps, 0.0)
        last_return = torch.where(end_before > 0, last_return, self.running_return + last_return)
        self.last_return.copy_(torch.where(any_end, last_return, self.last_return))
        self.running_return.copy_(torch.where(any_end, 0.0, self.running_return) + rest_return)
        self.running_length.copy_(torch.where(any_end, 0.0, self.running_length) + rest_steps)
        has_ended = ~self.last_return.isnan()
        has_acted = has_ended | (self.running_length > 0)
        finished_return = torch.where(has_ended, self.last_return, 0.0)
        return torch.stack([ended.sum(0), returns, lengths, finished_return, has_ended, has_acted])


def episode_metrics(sums: Tensor) -> Tensor:
    """Returns the metrics `metric_names.EPISODE_METRICS`, (5, ...) float64.

    Args:
        sums: (6, ...): sums over rows of what `EpisodeStatistics.add` returns.
    """
    episodes, returns, lengths, last_returns, ended_rows, acted_rows = sums
    means = [returns / episodes, lengths / episodes, last_returns / ended_rows]
    return torch.stack([episodes, *means, ended_rows / acted_rows])
