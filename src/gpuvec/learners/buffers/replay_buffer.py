"""A ring of transitions on the device, from which off-policy algorithms draw their batches.

Letters: S steps that the ring stores, T steps of a rollout, R rows, D observation features, K action components.
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
    mask: Tensor | None = None  # (...) bool: the agent was active; None in environments of one agent


def n_step_returns(
    obs: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor, final_obs: Tensor, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the n-step returns of a rollout, without the value of the last observation.

    The sum of a step's rewards ends after `n` of them, or with the episode or the rollout.

    Args:
        obs: (T + 1, R, D).
        reward: (T, R).
        terminated: (T, R) bool: the environment or this agent terminated.
        ended: (T, R) bool: the environment's episode is over.
        final_obs: (T, R, D): the last observation of an episode, defined where `ended`.
        gamma: the discount factor.
        n: the number of rewards, from 1 to T.

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
    """The ring. All of it is on the device, so that a CUDA graph can add and sample transitions."""

    transitions: Transitions  # (S, R, ...)
    position: Tensor  # () int64: the step of the ring that is written next
    size: Tensor  # () int64: steps that have been written, at most S

    @classmethod
    def allocate(
        cls, max_steps: int, rows: int, features: int, components: int, device: str, has_mask: bool = False
    ) -> ReplayBuffer:
        """Returns an empty buffer.

        Args:
            max_steps: S.
            rows: R.
            features: D.
            components: K.
            device: "cpu" or "cuda:<index>".
            has_mask: whether transitions have a mask.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((max_steps, rows, *shape), dtype=dtype, device=device)

        mask = zeros(dtype=torch.bool) if has_mask else None
        transitions = Transitions(zeros(features), zeros(components), zeros(), zeros(), zeros(features), mask)
        return cls(transitions, *torch.zeros(2, dtype=torch.int64, device=device))

    def add(self, new: Transitions) -> None:
        """Writes the transitions of a rollout, `new`, (T, R, ...), over the oldest ones."""
        max_steps, num_steps = len(self.transitions.reward), len(new.reward)
        index = (self.position + torch.arange(num_steps, device=self.position.device)) % max_steps
        for ring, values in zip(self.transitions, new, strict=True):
            if ring is not None and values is not None:
                ring.index_copy_(0, index, values)
        self.position.add_(num_steps).remainder_(max_steps)
        self.size.add_(num_steps).clamp_(max=max_steps)

    def sample(self, batch_size: int, generator: torch.Generator) -> Transitions:
        """Draws transitions uniformly, with replacement.

        Args:
            batch_size: B, the number of transitions.
            generator: the source of random numbers.

        Returns:
            Transitions, (B, ...).
        """
        rows = self.transitions.reward.shape[1]
        uniform = torch.rand(batch_size, dtype=torch.float64, generator=generator, device=self.size.device)
        index = (uniform * (self.size * rows)).long()

        def select(ring: Tensor) -> Tensor:
            return ring.flatten(0, 1).index_select(0, index)

        *rings, mask = self.transitions
        obs, action, reward, discount, next_obs = (select(ring) for ring in rings if ring is not None)
        return Transitions(obs, action, reward, discount, next_obs, mask if mask is None else select(mask))
