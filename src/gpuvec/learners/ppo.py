"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford and Klimov, 2017, arXiv:1707.06347).

Rollouts and advantages are those of `on_policy`. An update takes epochs of minibatches of Adam on the clipped surrogate
objective, the value loss and the entropy bonus. `fused_ppo` has the same algorithm in fused kernels for small perceptrons on a
GPU.

Letters: T steps, R rows, M minibatches of an epoch, B samples of a minibatch, D observation features, K action components.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpuvec.learners.buffers.minibatches import SampleOrder, gather_rows
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.estimators.masked_moments import masked_mean, masked_var_mean
from gpuvec.learners.networks.actor_critic import ActorCritic, Policy
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.own_loss import StandardLoss
from gpuvec.learners.policy import PolicyContext
from gpuvec.learners.training import Result, train

__all__ = ["PPO", "PPOArgs", "Result", "train"]

APPROX_KL = 3  # the index of the approximate KL divergence among the metrics of `ppo_loss`


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: Any) -> Tensor:
    """Returns the objective L^CLIP of the paper, equation 7, of each sample.

    Args:
        ratio: (B,): the probability of the action under the policy, over that under the policy that took it.
        advantage: (B,).
        clip: epsilon, a number, or a tensor whose shape fits.
    """
    return torch.min(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_error(value: Tensor, old_value: Tensor, target: Tensor, clip: Any) -> Tensor:
    """Returns half the squared error of each sample: the larger one of `value` and of its clipped change.

    Args:
        value: (B,).
        old_value: (B,): V before the update.
        target: (B,).
        clip: the largest change of V, a number, or a tensor whose shape fits; None for no clip.
    """
    error = (value - target).square()
    if clip is not None:
        error = torch.max(error, (old_value + (value - old_value).clamp(-clip, clip) - target).square())
    return 0.5 * error


def loss_terms(
    policy: Policy, value: Tensor, samples: Samples, advantage: Tensor, clip: Any, clip_value: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns what the loss and its metrics are means of, (B,) or (P, B) each.

    These are the objective, the value error and the entropy; and without gradients the terms of the approximate KL divergence,
    and whether the ratio is clipped.

    Args:
        policy: the distributions of the actions.
        value: V, (B,) or (P, B) as all tensors.
        samples: the minibatch.
        advantage: normalised.
        clip: epsilon, a number, or a tensor whose shape fits.
        clip_value: whether the change of V is clipped, too.
    """
    log_prob, entropy = policy.log_prob_and_entropy(samples.action)
    log_ratio = log_prob - samples.log_prob
    # The mask is applied before the exponential, because the gradient of one that overflows would be nan even if it is masked.
    if samples.mask is not None:
        log_ratio = log_ratio.where(samples.mask, 0.0)
    ratio = log_ratio.exp()
    error = value_error(value, samples.value, samples.target, clip if clip_value else None)
    with torch.no_grad():
        # The estimator k3 of Schulman (2020), "Approximating KL divergence".
        kl_terms, is_clipped = ratio - 1.0 - log_ratio, ((ratio - 1.0).abs() > clip).float()
    return clipped_surrogate(ratio, advantage, clip), error, entropy, kl_terms, is_clipped


def ppo_loss(
    network: ActorCritic,
    samples: Samples,
    args: PPOArgs,
    ent_coef: Tensor | float,
    advantage_moments: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the loss of a minibatch, and (5,) metrics: policy loss, value loss, entropy, approximate KL, clip fraction.

    Args:
        network: the policy and the value function.
        samples: the minibatch, (B,).
        args: the settings.
        ent_coef: coefficient of the entropy bonus.
        advantage_moments: variance and mean, () each, by which advantages are normalised; None for those of the minibatch.
    """
    policy, value = network.both(samples.obs, samples.action_mask, samples.critic_obs)
    advantage_var, advantage_mean = advantage_moments or masked_var_mean(samples.advantage, samples.mask)
    advantage = (samples.advantage - advantage_mean) / (advantage_var.sqrt() + 1e-8)
    terms = loss_terms(policy, value, samples, advantage, args.clip, args.clip_value)
    objective, value_loss, entropy, approx_kl, clip_fraction = (masked_mean(x, samples.mask) for x in terms)
    metrics = torch.stack([-objective, value_loss, entropy, approx_kl, clip_fraction]).detach()
    return -objective + args.vf_coef * value_loss - ent_coef * entropy, metrics


class PPO(OnPolicy):
    """A policy that learns by PPO.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        network: the policy and the value function.
        loss: `ppo_loss`, or a function that computes the same.

    Raises:
        OutOfMemoryError: the buffer of a rollout does not fit into the memory that is free.
    """

    args: PPOArgs
    update_metrics = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")

    def __init__(self, args: PPOArgs, context: PolicyContext, network: ActorCritic, loss: StandardLoss = ppo_loss) -> None:
        super().__init__(args, context, network, loss)
        self._order: SampleOrder | None = None
        if torch.device(args.device).type == "cuda":
            self._order = SampleOrder(args.device, [self.minibatch_seed], self.buffer.advantage.numel())

    def improve(self) -> None:
        """Takes epochs of minibatches, and writes `update_metrics`."""
        args = self.args
        metrics, norms = list[Tensor](), list[Tensor]()  # of each minibatch
        stop = torch.zeros((), device=args.device)  # 1 once the KL divergence exceeds its target
        for epoch in range(args.update_epochs):
            samples = [shard.shuffled_samples(epoch) for shard in self.shards]
            minibatches = zip(*(each.minibatches() for each in samples), strict=True)
            for minibatch, advantage_moments in zip(minibatches, self._advantage_moments(samples), strict=True):
                loss_metrics = self.differentiate(minibatch, advantage_moments)
                # The decision is made on the device, without synchronisation: Adam skips the steps at which `stop` is 1.
                if args.target_kl is not None:
                    stop = torch.maximum(stop, (loss_metrics[APPROX_KL] > args.target_kl).float())
                    self.optimizer.found_inf = stop
                metrics.append(loss_metrics)
                norms.append(self.optimize())
        means = torch.cat([torch.stack(metrics), torch.stack(norms).unsqueeze(1)], 1).mean(0, dtype=self.metrics.dtype)
        self.finish_update(means)

    def _advantage_moments(self, samples: Sequence[Samples]) -> list[tuple[Tensor, Tensor]]:
        """Returns variance and mean, () each, of the advantages of each minibatch of all shards; `samples` are (M, B) each."""
        if self.reduce.count == 1:
            variance, mean = masked_var_mean(samples[0].advantage, samples[0].mask, dim=1)
            return list(zip(variance.unbind(), mean.unbind(), strict=True))
        masks = [[None] * len(x.advantage) if x.mask is None else x.mask.unbind() for x in samples]
        return self.reduce.var_means([x.advantage.unbind() for x in samples], masks)

    def shuffled_samples(self, epoch: int) -> Samples:
        """Returns the samples of the rollout, (M, B), in the random order of an epoch.

        Args:
            epoch: the number of the epoch in this update, from 0.
        """
        samples = {name: x.flatten(0, 1) for name, x in self.buffer.samples()._asdict().items() if x is not None}
        shuffled = gather_rows(samples, self.sample_order(len(samples["advantage"]), epoch))
        shape = self.args.num_minibatches, -1
        return Samples(**{name: x.unflatten(0, shape) for name, x in shuffled.items()})

    def sample_order(self, count: int, epoch: int) -> Tensor:
        """Returns the order of the samples in an epoch, (count,) int64.

        Args:
            count: the number of samples.
            epoch: the number of the epoch in this update, from 0.
        """
        if self._order is None:
            return torch.rand(count, generator=self.generator, device=self.args.device).argsort()
        # A GPU takes longer to sort so many keys than to copy their samples.
        return self._order(self.num_rollouts, epoch, torch.empty(1, count, dtype=torch.int64, device=self.args.device))[0]
