"""Generalised advantage estimation (Schulman, Moritz, Levine, Jordan and Abbeel, 2016, arXiv:1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """The advantage of each step: the sum over k of (gamma lam)^k delta[t + k], up to the end of the episode.

    delta = reward + gamma next_value - value, and no next_value after a termination. A truncated episode goes on without
    us, so its last step does look ahead; but the sum stops there too, because the next row is another episode's.

    Args:
        reward: (T, E) float.
        value: (T, E), V of the observation that the step began with.
        next_value: (T, E), V of the observation that the step led to: the final one where the episode ended, not the first
            one of the next episode.
        terminated: (T, E) bool: the episode ended by the environment's rules.
        ended: (T, E) bool: terminated or truncated.
        gamma: the discount factor.
        lam: lambda, which weighs long sums against the value function.

    Returns:
        (T, E), in the type of `reward`. The value function's targets are the advantage plus `value`.
    """
    # torch.where and not a product: whatever V is of a terminal observation, even nan, it does not count.
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    decay = (gamma * lam) * (~ended).to(reward.dtype)
    advantage = torch.empty_like(delta)
    advantage[-1] = delta[-1]
    for t in range(len(delta) - 2, -1, -1):  # one kernel per step
        torch.addcmul(delta[t], decay[t], advantage[t + 1], out=advantage[t])
    return advantage
