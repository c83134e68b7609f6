"""The loss of PPO for several agents at once, each with its own coefficients.

Letters: P agents, B samples of a minibatch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.networks.actor_critic import Policy
from gpuvec.learners.ppo import clipped_surrogate, value_error


class LossSamples(NamedTuple):
    """The samples of a minibatch besides the observations."""

    action: Tensor  # (P, B) or (P, B, K)
    log_prob: Tensor  # (P, B): under the policy that took the action
    value: Tensor  # (P, B): V before the update
    advantage: Tensor  # (P, B)
    target: Tensor  # (P, B): of V


class LossCoefficients(NamedTuple):
    """The coefficients of each agent, (P, 1) float32."""

    clip: Tensor
    vf_coef: Tensor
    ent_coef: Tensor


def population_loss(
    policy: Policy, value: Tensor, samples: LossSamples, coefficients: LossCoefficients, clip_value: bool
) -> tuple[Tensor, Tensor]:
    """Returns the losses, (P,), and (5, P) metrics, as `ppo.ppo_loss` computes them for one agent.

    Args:
        policy: the distributions of actions, (P, B).
        value: V, (P, B).
        samples: the minibatch.
        coefficients: those of the agents.
        clip_value: whether the change of V is clipped, too.
    """
    log_prob, entropy = policy.log_prob_and_entropy(samples.action)
    log_ratio = log_prob - samples.log_prob
    ratio = log_ratio.exp()
    variance, mean = torch.var_mean(samples.advantage, 1, keepdim=True)
    advantage = (samples.advantage - mean) / (variance.sqrt() + 1e-8)
    clip = coefficients.clip
    policy_loss = -clipped_surrogate(ratio, advantage, clip).mean(1)
    value_loss = value_error(value, samples.value, samples.target, clip if clip_value else None).mean(1)
    mean_entropy = entropy.mean(1)
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean(1)
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean(1)
    metrics = torch.stack([policy_loss.detach(), value_loss.detach(), mean_entropy.detach(), approx_kl, clip_fraction])
    loss = policy_loss + coefficients.vf_coef[:, 0] * value_loss - coefficients.ent_coef[:, 0] * mean_entropy
    return loss, metrics
