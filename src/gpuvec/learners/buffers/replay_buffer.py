"""A ring of transitions on the device, from which off-policy algorithms draw their batches.

Letters: S steps that the ring stores, T steps of a rollout, R rows, D observation features, K action components.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.buffers.env_rollout import RolloutRows


class Transitions(NamedTuple):
    """Transitions of any leading shape (...)."""

    obs: Tensor  # (..., D)
    action: Tensor  # (..., K)
    reward: Tensor  # (...): discounted sum of up to n rewards
    discount: Tensor  # (...): factor of the value of next_obs; 0 where the episode terminated
    next_obs: Tensor  # (..., D): the observation after these rewards
    mask: Tensor | None = None  # (...) bool: the agent was active; None in environments of one agent


class StepReturns(NamedTuple):
    """What follows each action of a rollout, without the value of the last observation."""

    reward: Tensor  # (T, R): discounted sum of the rewards of up to n actions
    discount: Tensor  # (T, R): as in `Transitions`
    next_obs: Tensor  # (T, R, D): as in `Transitions`
    is_complete: Tensor  # (T, R) bool: no reward after the rollout belongs to the action


def n_step_returns(
    obs: Tensor,
    reward: Tensor,
    terminated: Tensor,
    ended: Tensor,
    final_obs: Tensor,
    gamma: float,
    n: int,
    mask: Tensor | None = None,
) -> StepReturns:
    """Returns the n-step returns of a rollout.

    Rewards of steps in which a row waits belong to its last action. They are summed without a discount, and the next
    observation of an action is that of the next action. The sum ends after `n` actions, or with the episode or the rollout,
    where an action that is not complete and its observation end it too.

    Args:
        obs: (T + 1, R, D).
        reward: (T, R), 0 outside the row's episodes.
        terminated: (T, R) bool: the environment or this agent terminated.
        ended: (T, R) bool: the environment's episode is over.
        final_obs: (T, R, D): the last observation of an episode, defined where `ended`.
        gamma: the discount factor of an action.
        n: the number of actions, from 1 to T.
        mask: (T, R) bool: the row acted; None if all rows always act.

    Returns:
        The returns; those of steps in which a row does not act have no meaning.
    """
    T, rows = reward.shape
    done, steps = ended | terminated, torch.arange(T, device=reward.device).unsqueeze(1)
    last, is_complete, goes_on = steps.expand(T, rows), torch.ones_like(done), ~done & (steps < T - 1)
    if mask is not None:
        reward, last = reward.clone(), last.clone()  # sums of an action's rewards, and the step of the last of them
        for t in reversed(range(T - 1)):
            is_last = done[t] | mask[t + 1]
            reward[t] += torch.where(is_last, 0.0, reward[t + 1])
            last[t] = torch.where(is_last, t, last[t + 1])
        is_complete = (last < T - 1) | done[-1]
        following = (last + 1).clamp(max=T - 1)
        goes_on = is_complete & goes_on.gather(0, last) & is_complete.gather(0, following)
    # The step of the next action of a sum; that of the row without a reward behind the rollout where there is none.
    next_action = torch.cat([torch.where(goes_on, last + 1, T), torch.full_like(last[:1], T)])
    rewards = torch.cat([reward, torch.zeros_like(reward[:1])])
    total, end, extra_actions, action = reward, steps.expand(T, rows), torch.zeros_like(last), steps.expand(T, rows)
    for k in range(1, n):
        action = next_action.gather(0, action)
        total = total.add(rewards.gather(0, action), alpha=gamma**k)
        is_action = action < T
        end, extra_actions = torch.where(is_action, action, end), extra_actions + is_action
    end = last.gather(0, end)
    discount = torch.where(terminated.gather(0, end), 0.0, gamma ** (extra_actions + 1).to(reward.dtype))
    next_obs = torch.where(ended.unsqueeze(-1), final_obs, obs[1:])
    return StepReturns(total, discount, next_obs.gather(0, end.unsqueeze(-1).expand_as(next_obs)), is_complete)


def _expand_to(x: Tensor, like: Tensor) -> Tensor:
    """Returns `x`, (T, R), in the shape of `like`, (T, R) or (T, R, N)."""
    return x.view(*x.shape, *[1] * (like.dim() - 2)).expand_as(like)


class ReplayBuffer(NamedTuple):
    """The ring. All of it is on the device, so that a CUDA graph can add and sample transitions."""

    transitions: Transitions  # (S, R, ...)
    position: Tensor  # () int64: the step of the ring that is written next
    size: Tensor  # () int64: steps that have been written, at most S
    pending: Transitions | None = None  # (R, ...): each row's last action if it is not complete; None without a mask

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

        def zeros(*leading: int) -> Transitions:
            obs, next_obs = torch.zeros(2, *leading, features, device=device)
            reward, discount = torch.zeros(2, *leading, device=device)
            mask = torch.zeros(leading, dtype=torch.bool, device=device) if has_mask else None
            return Transitions(obs, torch.zeros(*leading, components, device=device), reward, discount, next_obs, mask)

        position, size = torch.zeros(2, dtype=torch.int64, device=device)
        return cls(zeros(max_steps, rows), position, size, zeros(rows) if has_mask else None)

    def add_rollout(self, rows: RolloutRows, action: Tensor, reward: Tensor, gamma: float, n: int) -> None:
        """Writes the transitions of a rollout over the oldest ones.

        A row may wait after its last action, whose rewards then arrive in the next rollout. The transition is pending until
        it is complete, and then written to the place of the row in the step before that rollout, which is free.

        Args:
            rows: the rollout.
            action: (T, R, K).
            reward: (T, R): the rewards that are learned from, 0 outside the row's episodes.
            gamma, n: as in `n_step_returns`.
        """
        flags, pending = (rows.terminated, rows.ended), self.pending
        if pending is None or pending.mask is None or rows.mask is None:
            returns = n_step_returns(rows.obs, reward, *flags, rows.final_obs, gamma, n)
            self.add(Transitions(rows.obs[:-1], action, returns.reward, returns.discount, returns.next_obs))
            return

        def prepend(first: Tensor, x: Tensor) -> Tensor:
            return torch.cat([first.unsqueeze(0), x])

        # The pending actions are a step before the rollout, in which no episode ends.
        obs, action, reward = prepend(pending.obs, rows.obs), prepend(pending.action, action), prepend(pending.reward, reward)
        terminated, ended = (prepend(torch.zeros_like(x[0]), x) for x in flags)
        final_obs, mask = prepend(pending.next_obs, rows.final_obs), prepend(pending.mask, rows.mask)
        returns = n_step_returns(obs, reward, terminated, ended, final_obs, gamma, n, mask)
        complete, incomplete = mask & returns.is_complete, mask & ~returns.is_complete
        steps = Transitions(obs[:-1], action, returns.reward, returns.discount, returns.next_obs, complete)
        previous = (self.position.view(1) - 1) % len(self.transitions.reward)
        for ring, x in zip(self.transitions, steps, strict=True):
            if ring is not None and x is not None:
                value = torch.where(_expand_to(complete, x)[:1], x[:1], ring.index_select(0, previous))
                ring.index_copy_(0, previous, value)
        self.add(
            Transitions(
                obs[1:-1], action[1:], returns.reward[1:], returns.discount[1:], returns.next_obs[1:], complete[1:]
            )
        )  # fmt: skip
        last_action = incomplete.int().argmax(0, keepdim=True)
        for values, x in zip(pending, steps._replace(mask=incomplete), strict=True):
            if values is not None and x is not None:
                values.copy_(x.gather(0, _expand_to(last_action, x[:1]))[0])

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

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors of the buffer, as nested dicts."""
        state = {name: ring for name, ring in self.transitions._asdict().items() if ring is not None}
        state |= {"position": self.position, "size": self.size}
        return state if self.pending is None else {**state, "pending": self.pending._asdict()}
