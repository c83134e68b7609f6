"""Transitions that are remembered, in a ring on the device.

Letters: S slots, of T steps each iteration fills the next ones, E environments, D observation features, K action components.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Transitions(NamedTuple):
    """What followed from actions; B is any shape."""

    obs: Tensor  # (B, D)
    action: Tensor  # (B, K)
    reward: Tensor  # (B,): discounted sum of up to n rewards
    discount: Tensor  # (B,): of the value of next_obs; 0 where the episode terminated
    next_obs: Tensor  # (B, D): the observation after those rewards
    mask: Tensor | None = None  # (B,) bool: the agent was in the game; None if a row is an environment of one agent


def n_step_returns(
    obs: Tensor, reward: Tensor, terminated: Tensor, ended: Tensor, final_obs: Tensor, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(reward, discount, next_obs) of each step of a rollout: up to n rewards, up to its episode's or the rollout's end.

    Args:
        obs: (T + 1, E, D).
        reward: (T, E).
        terminated: (T, E) bool; so is an agent that left, while its env goes on.
        ended: (T, E) bool: the env's episode is over.
        final_obs: (T, E, D): where it is, its last observation.
        gamma: the discount factor.
        n: from 1 to T.
    """
    T = len(reward)
    goes_on = (~(ended | terminated)).to(reward.dtype)  # 1, or 0 for an episode's last step
    total, more, going = reward.clone(), torch.zeros_like(reward), goes_on.clone()
    for k in range(1, n):
        early = slice(0, T - k)  # steps that have a k-th successor in the rollout
        total[early].addcmul_(reward[k:], going[early], value=gamma**k)
        more[early] += going[early]
        going[early] *= goes_on[k:]
    last = torch.arange(T, device=reward.device).unsqueeze(1) + more.long()
    discount = torch.where(terminated.gather(0, last), 0.0, gamma ** (more + 1))
    following = torch.where(ended.unsqueeze(-1), final_obs, obs[1:])
    return total, discount, following.gather(0, last.unsqueeze(-1).expand_as(following))


class ReplayBuffer(NamedTuple):
    """The ring."""

    held: Transitions  # (S, E, ...)
    position: Tensor  # scalar int64: the slot that is written next
    filled: Tensor  # scalar int64: slots that hold something

    @classmethod
    def of(cls, slots: int, envs: int, features: int, components: int, device: str, masked: bool = False) -> ReplayBuffer:
        """An empty one."""

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((slots, envs, *shape), dtype=dtype, device=device)

        mask = room(dtype=torch.bool) if masked else None
        held = Transitions(room(features), room(components), room(), room(), room(features), mask)
        return cls(held, *torch.zeros(2, dtype=torch.int64, device=device))

    def add(self, new: Transitions) -> None:
        """Writes T steps over the oldest ones."""
        slots = len(self.held.reward)
        where = (self.position + torch.arange(len(new.reward), device=self.position.device)) % slots
        for ring, values in zip(self.held, new, strict=True):
            if ring is not None and values is not None:
                ring.index_copy_(0, where, values)
        self.position.add_(len(new.reward)).remainder_(slots)
        self.filled.add_(len(new.reward)).clamp_(max=slots)

    def sample(self, count: int, generator: torch.Generator) -> Transitions:
        """That many of those held, each drawn by itself."""
        envs = self.held.reward.shape[1]
        share = torch.rand(count, dtype=torch.float64, generator=generator, device=self.filled.device)
        where = (share * (self.filled * envs)).long()

        def of(ring: Tensor) -> Tensor:
            return ring.flatten(0, 1).index_select(0, where)

        *rings, mask = self.held
        obs, action, reward, discount, next_obs = (of(ring) for ring in rings if ring is not None)
        return Transitions(obs, action, reward, discount, next_obs, mask if mask is None else of(mask))
