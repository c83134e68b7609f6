"""Returns and lengths of the episodes that end within a rollout, from the rollout itself, on the device.

A rollout of T steps holds whole episodes and pieces of them. For the sums it does not matter where one episode ends and
the next begins: all reward up to an environment's last end belongs to episodes that ended, the rest to the running one.
So nothing need be counted in the steps themselves, and no loop over T is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class EpisodeStatistics(NamedTuple):
    """What is carried from one rollout to the next; all (E,) float32."""

    running_return: Tensor
    """Undiscounted return so far of the running episode."""
    running_length: Tensor
    """Its steps so far."""
    last_return: Tensor
    """Mean return of the episodes that ended in the last rollout in which any did; nan before the first."""

    @classmethod
    def of(cls, num_envs: int, device: torch.device | str) -> EpisodeStatistics:
        """At the beginning of E episodes."""
        zeros = torch.zeros(2, num_envs, device=device)
        return cls(zeros[0], zeros[1], torch.full_like(zeros[0], torch.nan))

    def add(self, reward: Tensor, ended: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Adds a rollout, `reward` (T, E) and `ended` (T, E) bool, and updates the carried tensors in place.

        With a `mask`, (T, E) bool, only steps in it are counted; outside it rewards must be 0, and no episode may end.

        Returns:
            Episodes that ended in the rollout, the sum of their returns and the sum of their lengths; each a scalar.
        """
        steps = torch.arange(1, len(reward) + 1, device=reward.device, dtype=torch.int32).unsqueeze(1)
        last = (ended * steps).amax(0)  # (E,): steps up to and with the last end, 0 if there is none
        before = steps <= last
        episodes = ended.sum(0, dtype=torch.float32)
        finished, rest, any_end = (reward * before).sum(0), (reward * ~before).sum(0), last > 0
        counted, after = last, len(reward) - last
        if mask is not None:
            counted, after = (mask & before).sum(0), (mask & ~before).sum(0)
        returns = torch.where(any_end, self.running_return + finished, 0.0)
        lengths = torch.where(any_end, self.running_length + counted, 0.0)
        self.last_return.copy_(torch.where(any_end, returns / episodes, self.last_return))
        self.running_return.copy_(torch.where(any_end, 0.0, self.running_return) + rest)
        self.running_length.copy_(torch.where(any_end, 0.0, self.running_length) + after)
        return episodes.sum(), returns.sum(), lengths.sum()
