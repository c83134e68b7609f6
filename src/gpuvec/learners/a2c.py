"""Advantage actor-critic, with environments that step together instead of threads that take turns.

The algorithm is A3C (Mnih, Puigdomenech Badia, Mirza, Graves, Lillicrap, Harley, Silver and Kavukcuoglu, 2016,
arXiv:1602.01783), without its asynchrony. Rollouts and estimates are those of `on_policy`; what is learned from each is
here: one step of Adam, where the paper has RMSProp, along the gradient of all of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.config.a2c_config import A2CArgs
from gpuvec.learners.estimators.masked_moments import masked_mean
from gpuvec.learners.networks.actor_critic import ActorCritic, Body
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.policy import PolicyContext
from gpuvec.learners.training import Result, train

__all__ = ["A2C", "A2CArgs", "Result", "train"]


class Batch(NamedTuple):
    """A rollout to learn from."""

    obs: Tensor  # (T, E, D)
    action: Tensor  # (T, E) or (T, E, K)
    advantage: Tensor  # (T, E)
    target: Tensor  # (T, E)
    mask: Tensor | None = None  # (T, E) bool: the samples that count; None for all


def loss(network: ActorCritic, batch: Batch, args: A2CArgs, ent_coef: Tensor | float) -> tuple[Tensor, Tensor]:
    """The loss of a rollout, and (3,) metrics: policy loss, value loss, entropy."""
    policy, value = network.both(batch.obs)
    log_prob, surprise = policy.log_prob_and_entropy(batch.action)
    policy_loss = -masked_mean(log_prob * batch.advantage, batch.mask)
    value_loss = masked_mean(0.5 * (value - batch.target).square(), batch.mask)
    entropy = masked_mean(surprise, batch.mask)
    metrics = torch.stack([policy_loss, value_loss, entropy]).detach()
    return policy_loss + args.vf_coef * value_loss - ent_coef * entropy, metrics


class A2C(OnPolicy):
    """The policy of `context` with the settings `args` (resolved)."""

    args: A2CArgs
    learned = ("policy_loss", "value_loss", "entropy", "grad_norm")

    def __init__(self, args: A2CArgs, context: PolicyContext, body: Body | None = None) -> None:
        super().__init__(args, context, loss, body)

    def improve(self) -> None:
        """One step along the policy gradient."""
        s = self.storage
        rollout = Batch(s.obs[:-1], s.action, s.advantage, s.target, s.mask)
        value, metrics = self.loss(self.network, rollout, self.args, self.ent_coef)
        norm = self.update(value)
        self.metrics[-len(self.learned) :] = torch.cat([metrics, norm.view(1)])
        if self.network.normalizer is not None:
            self.network.normalizer.update(s.obs[:-1], s.mask)
        self.check_update_finite()
