"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford and Klimov, 2017, arXiv:1707.06347).

Rollouts and advantages are those of `on_policy`. An update takes epochs of minibatches of Adam on the clipped surrogate
objective, the value loss and the entropy bonus. On a GPU, kernels of `fused_ppo` do the same for small perceptrons.

Letters: T steps, R rows, B samples of a minibatch, D observation features, K action components.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.estimators.masked_moments import masked_mean, masked_var_mean
from gpuvec.learners.fused_ppo.select_path import select_update
from gpuvec.learners.networks.actor_critic import ActorCritic, Body
from gpuvec.learners.on_policy import ROLLOUT_METRICS, OnPolicy
from gpuvec.learners.policy import PolicyContext, Stage
from gpuvec.learners.training import Result, train

if TYPE_CHECKING:
    from gpuvec.learners.fused_ppo.fused_estimate import FusedEstimate

__all__ = ["PPO", "PPOArgs", "Result", "train"]

APPROX_KL = 3  # the index of the approximate KL divergence among the metrics of `ppo_loss`


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Returns the objective L^CLIP of the paper, equation 7, of each sample.

    Args:
        ratio: (B,): the probability of the action under the policy, over that under the policy that took it.
        advantage: (B,).
        clip: epsilon.
    """
    return torch.min(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_error(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """Returns half the squared error of each sample: the larger one of `value` and of its clipped change.

    Args:
        value: (B,).
        old_value: (B,): V before the update.
        target: (B,).
        clip: the largest change of V; None for no clip.
    """
    error = (value - target).square()
    if clip is not None:
        error = torch.max(error, (old_value + (value - old_value).clamp(-clip, clip) - target).square())
    return 0.5 * error


def ppo_loss(network: ActorCritic, samples: Samples, args: PPOArgs, ent_coef: Tensor | float) -> tuple[Tensor, Tensor]:
    """Returns the loss of a minibatch, and (5,) metrics: policy loss, value loss, entropy, approximate KL, clip fraction.

    Args:
        network: the policy and the value function.
        samples: the minibatch, (B,).
        args: the settings.
        ent_coef: coefficient of the entropy bonus.
    """
    policy, value = network.both(samples.obs)
    log_prob, entropy = policy.log_prob_and_entropy(samples.action)
    log_ratio = log_prob - samples.log_prob
    if samples.mask is not None:  # before the exponential: the gradient of one that overflows would be nan even if masked
        log_ratio = log_ratio.where(samples.mask, 0.0)
    ratio = log_ratio.exp()

    advantage_var, advantage_mean = masked_var_mean(samples.advantage, samples.mask)
    advantage = (samples.advantage - advantage_mean) / (advantage_var.sqrt() + 1e-8)
    policy_loss = -masked_mean(clipped_surrogate(ratio, advantage, args.clip), samples.mask)

    error = value_error(value, samples.value, samples.target, args.clip if args.clip_value else None)
    value_loss = masked_mean(error, samples.mask)
    mean_entropy = masked_mean(entropy, samples.mask)

    with torch.no_grad():
        approx_kl = masked_mean(ratio - 1.0 - log_ratio, samples.mask)  # k3 of Schulman (2020), "Approximating KL divergence"
        clip_fraction = masked_mean(((ratio - 1.0).abs() > args.clip).float(), samples.mask)
    metrics = torch.stack([policy_loss.detach(), value_loss.detach(), mean_entropy.detach(), approx_kl, clip_fraction])
    return policy_loss + args.vf_coef * value_loss - ent_coef * mean_entropy, metrics


class PPO(OnPolicy):
    """A policy that learns by PPO.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        body: makes the network, see `networks.actor_critic`; by default a perceptron as in `args`.

    Raises:
        OutOfMemoryError: the estimates of a rollout do not fit into the memory that is free.
        TypeError, ValueError: a body that does not fit, an action space of another kind, or `fused=True` where it cannot be.
    """

    args: PPOArgs
    update_metrics = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")

    def __init__(self, args: PPOArgs, context: PolicyContext, body: Body | None = None) -> None:
        super().__init__(args, context, ppo_loss, body)
        buffer, scalars = self.buffer, (self.learning_rate, self.ent_coef, self.num_rollouts)
        shuffled = replace(args, seed=self.minibatch_seed)  # from which the fused update draws its order
        self._fused = select_update(shuffled, self.network, self.optimizer, buffer.reward, buffer.mask is not None, *scalars)
        self._estimate: FusedEstimate | None = None  # the fused one, where rollouts are fused

    def fused_rollout(self, rollout: EnvRollout) -> Stage | None:
        """Returns a stage that fills `rollout` by one kernel, for environments of one agent without wrappers."""
        env = rollout.env
        if self._fused is None or env.unwrapped is not env or rollout.num_agents is not None:
            return None
        from gpuvec.learners.fused_ppo.fused_estimate import FusedEstimate
        from gpuvec.learners.fused_ppo.fused_rollout import FusedRollout

        update, buffer = self._fused, self.buffer
        play = FusedRollout(update.shape, update.parameters, rollout, self.num_rollouts, self.action_seed, 0)
        if self.reward_scaler is None:
            rows = buffer.reward.shape[1]
            self._estimate = FusedEstimate(update.shape, self.args, rows, update.records, self.num_rollouts)
        self.has_values = self.single_graph = True
        return partial(play, buffer.action, buffer.log_prob, buffer.value, self.final_value)

    @torch.no_grad()
    def finish_rollout(self) -> None:
        """Counts and checks the rollout; the fused estimate does both itself."""
        if self._estimate is None:
            super().finish_rollout()

    @torch.no_grad()
    def estimate(self) -> None:
        """Computes advantages and targets, by torch's operations or by the fused kernel."""
        if self._estimate is None:
            super().estimate()
        else:
            metrics = self.metrics[: len(ROLLOUT_METRICS)]
            self._estimate(self.buffer, self.final_value, self.episodes, metrics, self.guard.fault_rows)

    def improve(self) -> None:
        """Takes epochs of minibatches, by torch's operations or by the fused kernels, and writes `update_metrics`."""
        metrics = self.metrics[-len(self.update_metrics) :]
        if self._fused is not None:
            if self._estimate is None:
                self._fused.pack(self.buffer)
            self._fused(self.buffer, metrics, self.guard.fault_rows[-2:])
            return
        args = self.args
        metrics.zero_()
        stop = torch.zeros((), device=args.device)  # 1 once the KL divergence exceeds its target
        for minibatch in self.minibatches():
            loss, loss_metrics = self.loss(self.network, minibatch, args, self.ent_coef)
            if args.target_kl is not None:  # on the device: Adam skips the steps at which `stop` is 1
                stop = torch.maximum(stop, (loss_metrics[APPROX_KL] > args.target_kl).float())
                self.optimizer.found_inf = stop
            norm = self.optimize(loss)
            metrics += torch.cat([loss_metrics, norm.view(1)])
        metrics /= args.update_epochs * args.num_minibatches
        self.finish_update()

    def minibatches(self) -> Iterator[Samples]:
        """Yields `num_minibatches` of the rollout's samples, `update_epochs` times, each time in another random order."""
        args, samples = self.args, self.buffer.samples()
        count = samples.advantage.numel()
        for _ in range(args.update_epochs):
            # A permutation by sorting random keys: `torch.randperm` would synchronise with the host.
            order = torch.rand(count, generator=self.generator, device=args.device).argsort()
            chunks = (x.flatten(0, 1).index_select(0, order).chunk(args.num_minibatches) for x in samples if x is not None)
            for minibatch in zip(*chunks, strict=True):
                yield Samples(*minibatch)
