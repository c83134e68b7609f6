"""The episodes of rows that do not act in each step: agents that wait for their turn, leave, or join again.

An episode of a row begins with its first action, and ends when it terminates or the episode of its environment is over. Steps
between two actions of an episode are waiting steps, whose rewards belong to the last action. A row that acts again after it had
terminated begins a new episode.

Letters: T steps, E environments, A agents.
"""

from __future__ import annotations

import torch
from torch import Tensor


def steps_in_episode(mask: Tensor, done: Tensor, continues: Tensor) -> Tensor:
    """Returns, (T, E, A) bool, in which steps a row acts, or waits after an action of the same episode.

    Args:
        mask: (T, E, A) bool: the row acts.
        done: (T, E, A) bool: the row terminated, or the episode of its environment is over.
        continues: (E, A) bool: an episode of the row continues at the first step.
    """
    # A row is in an episode if its last action is later than the last end before this step. Steps are counted from 2, since 1
    # is the time of an action before the first step.
    steps = torch.arange(2, len(mask) + 2, dtype=torch.int32, device=mask.device).view(-1, 1, 1)
    last_action = torch.where(mask, steps, continues.int()).cummax(0).values
    last_end = torch.zeros_like(last_action)
    last_end[1:] = (done[:-1] * steps[:-1]).cummax(0).values
    return last_action > last_end
