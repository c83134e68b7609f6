"""Advantage actor-critic, with environments that step together instead of asynchronous threads.

The algorithm is A3C (Mnih, Puigdomenech Badia, Mirza, Graves, Lillicrap, Harley, Silver and Kavukcuoglu, 2016,
arXiv:1602.01783) without its asynchrony. Rollouts and advantages are those of `on_policy`. An update is one step of Adam, where
the paper has RMSProp, along the gradient of the whole rollout.

Letters: T steps, R rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.training_config import A2CArgs
from gpuvec.learners.estimators.masked_moments import masked_mean
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.policy import PolicyContext
from gpuvec.learners.training import Result, train

__all__ = ["A2C", "A2CArgs", "Result", "train"]


def a2c_loss(network: ActorCritic, samples: Samples, args: A2CArgs, ent_coef: Tensor | float) -> tuple[Tensor, Tensor]:
    """Returns the loss of a rollout, and (3,) metrics: policy loss, value loss, entropy.

    Args:
        network: the policy and the value function.
        samples: the rollout, (T, R).
        args: the settings.
        ent_coef: coefficient of the entropy bonus.
    """
    policy, value = network.both(samples.obs, samples.action_mask, samples.critic_obs)
    log_prob, entropy = policy.log_prob_and_entropy(samples.action)
    policy_loss = -masked_mean(log_prob * samples.advantage, samples.mask)
    value_loss = masked_mean(0.5 * (value - samples.target).square(), samples.mask)
    mean_entropy = masked_mean(entropy, samples.mask)
    metrics = torch.stack([policy_loss, value_loss, mean_entropy]).detach()
    return policy_loss + args.vf_coef * value_loss - ent_coef * mean_entropy, metrics


class A2C(OnPolicy):
    """A policy that learns by A2C.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        network: the policy and the value function.

    Raises:
        OutOfMemoryError: the buffer of a rollout does not fit into the memory that is free.
    """

    args: A2CArgs
    update_metrics = ("policy_loss", "value_loss", "entropy", "grad_norm")

    def __init__(self, args: A2CArgs, context: PolicyContext, network: ActorCritic) -> None:
        super().__init__(args, context, network, a2c_loss)

    def improve(self) -> None:
        """Takes one step along the policy gradient of the rollout, and writes `update_metrics`."""
        metrics = self.differentiate([shard.buffer.samples() for shard in self.shards])
        self.finish_update(torch.cat([metrics, self.optimize().view(1)]))
