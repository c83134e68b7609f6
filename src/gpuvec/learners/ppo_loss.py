"""What PPO minimises: the clipped surrogate of the policy, the error of the value function, minus entropy.

Pure functions of tensors, over minibatches of B samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.estimators.masked_moments import masked_mean, masked_var_mean
from gpuvec.learners.networks.actor_critic import ActorCritic


class Batch(NamedTuple):
    """Samples to learn from."""

    obs: Tensor  # (B, D)
    action: Tensor  # (B,) or (B, K)
    log_prob: Tensor  # (B,)
    value: Tensor  # (B,)
    advantage: Tensor  # (B,)
    target: Tensor  # (B,)
    mask: Tensor | None = None  # (B,) bool: the samples that count; None for all


def surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """(B,): the clipped surrogate objective L^CLIP, equation 7: the lower of the plain and the clipped gain."""
    return torch.min(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_error(value: Tensor, old: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """(B,): half the squared error, the higher one of `value` and of `value` clipped to `old` +- clip, if there is a clip."""
    error = (value - target).square()
    if clip is not None:
        error = torch.max(error, (old + (value - old).clamp(-clip, clip) - target).square())
    return 0.5 * error


def loss(network: ActorCritic, batch: Batch, args: PPOArgs, ent_coef: Tensor | float) -> tuple[Tensor, Tensor]:
    """The loss of a minibatch, and (5,) metrics: policy loss, value loss, entropy, approximate KL, clip fraction."""
    policy, value = network.both(batch.obs)
    log_prob, surprise = policy.log_prob_and_entropy(batch.action)
    log_ratio = log_prob - batch.log_prob
    if batch.mask is not None:  # before the exponential: the gradient of one that overflows would be nan, counted or not
        log_ratio = log_ratio.where(batch.mask, 0.0)
    ratio = log_ratio.exp()
    variance, centre = masked_var_mean(batch.advantage, batch.mask)
    advantage = (batch.advantage - centre) / (variance.sqrt() + 1e-8)
    policy_loss = -masked_mean(surrogate(ratio, advantage, args.clip), batch.mask)
    error = value_error(value, batch.value, batch.target, args.clip if args.clip_value else None)
    value_loss = masked_mean(error, batch.mask)
    entropy = masked_mean(surprise, batch.mask)
    with torch.no_grad():
        approx_kl = masked_mean(ratio - 1.0 - log_ratio, batch.mask)  # Schulman (2020), "Approximating KL divergence", k3
        clip_fraction = masked_mean(((ratio - 1.0).abs() > args.clip).float(), batch.mask)
    metrics = torch.stack([policy_loss.detach(), value_loss.detach(), entropy.detach(), approx_kl, clip_fraction])
    return policy_loss + args.vf_coef * value_loss - ent_coef * entropy, metrics
