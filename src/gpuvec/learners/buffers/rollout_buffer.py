"""The data of an on-policy update: a rollout, the actions of its policy, and their advantages.

Letters: T steps, R rows, D observation features, K action components, N actions.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Samples(NamedTuple):
    """Samples of a loss, of any leading shape (...): (T, R) for a whole rollout, (B,) for a minibatch, (M, B) for M of them."""

    obs: Tensor  # (..., D)
    action: Tensor  # (...) or (..., K)
    log_prob: Tensor  # (...): of the action under the policy that took it
    value: Tensor  # (...): V(obs) before the update
    advantage: Tensor  # (...)
    target: Tensor  # (...): of V(obs)
    mask: Tensor | None = None  # (...) bool: the samples that count; None for all
    action_mask: Tensor | None = None  # (..., N) bool: the allowed actions; None in environments without masks
    critic_obs: Tensor | None = None  # (..., Dc): the critic's observations; None in environments without them

    def minibatches(self) -> list[Samples]:
        """Returns views of the M minibatches, (B,) each, of samples (M, B)."""
        fields = ([None] * len(self.advantage) if x is None else x.unbind() for x in self)
        return [Samples(*minibatch) for minibatch in zip(*fields, strict=True)]


class RolloutBuffer(NamedTuple):
    """A rollout with its values, advantages and targets."""

    obs: Tensor  # (T + 1, R, D); the last row is the first of the next rollout
    action: Tensor  # (T, R) or (T, R, K) int64, or (T, R, K) float32, as drawn from the policy
    log_prob: Tensor  # (T, R): of the action under the policy that took it
    reward: Tensor  # (T, R)
    terminated: Tensor  # (T, R) bool
    ended: Tensor  # (T, R) bool: the environment's episode is over
    final_obs: Tensor  # (T, R, D): the last observation of an episode, defined where `ended`
    value: Tensor  # (T + 1, R): V(obs)
    advantage: Tensor  # (T, R)
    target: Tensor  # (T, R): of V(obs)
    mask: Tensor | None = None  # (T, R) bool: the agent acted; None in environments of one agent
    action_mask: Tensor | None = None  # (T + 1, R, N) bool: the allowed actions at `obs`; None in environments without masks
    in_episode: Tensor | None = None  # (T, R) bool: the agent acted, or waited in a running episode; None like `mask`
    critic_obs: Tensor | None = None  # (T + 1, R, Dc): the critic's observations; None in environments without them
    final_critic_obs: Tensor | None = None  # (T, R, Dc): those of the end of an episode, defined where `ended`

    @property
    def value_obs(self) -> Tensor:
        """(T + 1, R, ...): the observations of the value function, those of the critic if there are any."""
        return self.obs if self.critic_obs is None else self.critic_obs

    @property
    def final_value_obs(self) -> Tensor:
        """(T, R, ...): the last observations of the value function in an episode, defined where `ended`."""
        return self.final_obs if self.final_critic_obs is None else self.final_critic_obs

    def samples(self) -> Samples:
        """Returns views of the rollout's T * R samples, with the leading shape (T, R)."""
        action_mask = None if self.action_mask is None else self.action_mask[:-1]
        critic_obs = None if self.critic_obs is None else self.critic_obs[:-1]
        return Samples(
            self.obs[:-1], self.action, self.log_prob, self.value[:-1], self.advantage, self.target, self.mask, action_mask,
            critic_obs,
        )  # fmt: skip
