"""A ring of transitions on the device, from which off-policy algorithms draw their batches.

Letters: S slots, of which T are written per iteration, T steps, R rows, D observation features, K action components.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    """Transitions of any leading shape (...)."""

    obs: Tensor  # (..., D)
    action: Tensor  # (..., K)
    reward: Tensor  # (...): discounted sum of up to n rewards
    discount: Tensor  # (...): factor of the value of next_obs; 0 where the episode terminated
    next_obs: Tensor  # (..., D): the observation after these rewards
    mask: Tensor | None = None  # (...) bool: the agent was active; None if a row is an environment of one agent


def n_step_returns(
    obs: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor, final_obs: Tensor, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums up to `n` rewards of each step of a rollout, up to the end of its episode or of the rollout.

    Args:
        obs: (T + 1, R, D).
        reward: (T, R).
        terminated: (T, R) bool: the environment terminated, or this agent left it.
        ended: (T, R) bool: the environment's episode is over.
        final_obs: (T, R, D): the last observation of an episode, defined where `ended`.
        gamma: the discount factor.
        n: from 1 to T.

    Returns:
        (reward, discount, next_obs) as in `Transitions`, of shapes (T, R), (T, R) and (T, R, D).
    """
    T = len(reward)
    continues = (~(ended | terminated)).to(reward.dtype)  # 1, or 0 for the last step of an episode
    total, extra_steps, alive = reward.clone(), torch.zeros_like(reward), continues.clone()
    for k in range(1, n):
        has_successor = slice(0, T - k)  # steps whose k-th successor is in the rollout
        total[has_successor].addcmul_(reward[k:], alive[has_successor], value=gamma**k)
        extra_steps[has_successor] += alive[has_successor]
        alive[has_successor] *= continues[k:]
    last = torch.arange(T, device=reward.device).unsqueeze(1) + extra_steps.long()
    discount = torch.where(terminated.gather(0, last), 0.0, gamma ** (extra_steps + 1))
    next_obs = torch.where(ended.unsqueeze(-1), final_obs, obs[1:])
    return total, discount, next_obs.gather(0, last.unsqueeze(-1).expand_as(next_obs))


class ReplayBuffer(NamedTuple):
    """The ring; all of it is on the device, so that a CUDA graph can add and sample."""

    transitions: Transitions  # (S, R, ...)
    position: Tensor  # scalar int64: the slot that is written next
    size: Tensor  # scalar int64: slots that hold transitions

    @classmethod
    def allocate(
        cls, slots: int, rows: int, features: int, components: int, device: str, has_mask: bool = False
    ) -> ReplayBuffer:
        """Returns an empty buffer.

        Args:
            slots: S.
            rows: R.
            features: D.
            components: K.
            device: "cpu" or "cuda:<index>".
            has_mask: whether transitions have a mask.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((slots, rows, *shape), dtype=dtype, device=device)

        mask = zeros(dtype=torch.bool) if has_mask else None
        transitions = Transitions(zeros(features), zeros(components), zeros(), zeros(), zeros(features), mask)
        return cls(transitions, *torch.zeros(2, dtype=torch.int64, device=device))

    def add(self, new: Transitions) -> None:
        """Writes `new`, (T, R, ...), over the oldest transitions."""
        slots = len(self.transitions.reward)
        index = (self.position + torch.arange(len(new.reward), device=self.position.device)) % slots
        for ring, values in zip(self.transitions, new, strict=True):
            if ring is not None and values is not None:
                ring.index_copy_(0, index, values)
        self.position.add_(len(new.reward)).remainder_(slots)
        self.size.add_(len(new.reward)).clamp_(max=slots)

    def sample(self, count: int, generator: torch.Generator) -> Transitions:
        """Draws `count` transitions uniformly, with replacement, by the numbers of `generator`; (count, ...) each."""
        rows = self.transitions.reward.shape[1]
        fraction = torch.rand(count, dtype=torch.float64, generator=generator, device=self.size.device)
        index = (fraction * (self.size * rows)).long()

        def take(ring: Tensor) -> Tensor:
            return ring.flatten(0, 1).index_select(0, index)

        *rings, mask = self.transitions
        obs, action, reward, discount, next_obs = (take(ring) for ring in rings if ring is not None)
        return Transitions(obs, action, reward, discount, next_obs, mask if mask is None else take(mask))
