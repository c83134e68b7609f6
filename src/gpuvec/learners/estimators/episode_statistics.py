"""Returns and lengths of the episodes that end within a rollout, computed on the device from the rollout alone.

All rewards of a row up to the last end of an episode belong to episodes that ended, and the others to the running episode. Sums
over a rollout therefore need no loop over steps.

Letters: T steps, R rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class EpisodeStatistics(NamedTuple):
    """The state of running episodes between two rollouts; all (R,) float32."""

    running_return: Tensor
    """Undiscounted return of the running episode so far."""
    running_length: Tensor
    """Its steps so far in which the row acted."""
    last_return: Tensor
    """Mean return of a row's episodes in the last rollout in which an episode ended; nan before the first."""

    @classmethod
    def initial(cls, rows: int, device: torch.device | str) -> EpisodeStatistics:
        """Returns the statistics at the beginning of `rows` episodes, R, on `device`."""
        zeros = torch.zeros(2, rows, device=device)
        return cls(zeros[0], zeros[1], torch.full_like(zeros[0], torch.nan))

    def add(self, reward: Tensor, ended: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Adds a rollout as `add_rows`, and returns sums over all rows.

        Args:
            reward: (T, R), 0 outside episodes.
            ended: (T, R) bool: the last step of an episode; none outside episodes.
            mask: (T, R) bool: the steps that count for the length, in which the row acted; None for all.

        Returns:
            The number of episodes that ended, the sum of their returns and the sum of their lengths; each a scalar.
        """
        episodes, returns, lengths = self.add_rows(reward, ended, mask)
        return episodes.sum(), returns.sum(), lengths.sum()

    def add_rows(self, reward: Tensor, ended: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Adds a rollout, and updates these tensors in place.

        Args:
            reward: (T, R), 0 outside episodes.
            ended: (T, R) bool: the last step of an episode; none outside episodes.
            mask: (T, R) bool: the steps that count for the length, in which the row acted; None for all.

        Returns:
            The number of episodes that ended in each row, the sum of their returns and the sum of their lengths; each (R,).
        """
        steps = torch.arange(1, len(reward) + 1, device=reward.device, dtype=torch.int32).unsqueeze(1)
        last_end = (ended * steps).amax(0)  # (R,): steps up to and with the last end, 0 if there is none
        in_ended = steps <= last_end  # (T, R): steps of episodes that ended
        episodes = ended.sum(0, dtype=torch.float32)
        ended_return, rest_return, any_end = (reward * in_ended).sum(0), (reward * ~in_ended).sum(0), last_end > 0
        ended_steps, rest_steps = last_end, len(reward) - last_end
        if mask is not None:
            ended_steps, rest_steps = (mask & in_ended).sum(0), (mask & ~in_ended).sum(0)
        returns = torch.where(any_end, self.running_return + ended_return, 0.0)
        lengths = torch.where(any_end, self.running_length + ended_steps, 0.0)
        self.last_return.copy_(torch.where(any_end, returns / episodes, self.last_return))
        self.running_return.copy_(torch.where(any_end, 0.0, self.running_return) + rest_return)
        self.running_length.copy_(torch.where(any_end, 0.0, self.running_length) + rest_steps)
        return episodes, returns, lengths
