"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford and Klimov, 2017, arXiv:1707.06347).

Rollouts and estimates are those of `on_policy`; what is learned from each is here: epochs x minibatches of Adam on the
clipped surrogate, the value loss and the entropy. The settings, `PPOArgs`, are in `args.ppo`, the objective is in `ppo_loss`.
Where a GPU and a small perceptron allow it, kernels of `fused` do the same in place of torch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.fused_ppo.select_path import select_update
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.on_policy import ROLLOUT_METRICS, OnPolicy
from gpuvec.learners.policy import PolicyContext
from gpuvec.learners.ppo_loss import Batch, loss
from gpuvec.learners.training import Result, train

__all__ = ["PPO", "PPOArgs", "Result", "train"]

KL = 3  # where the approximate KL divergence is among the metrics of the loss


class PPO(OnPolicy):
    """The policy of `context` with the settings `args` (resolved)."""

    args: PPOArgs
    learned = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")

    def __init__(self, args: PPOArgs, context: PolicyContext, body: Body | None = None) -> None:
        super().__init__(args, context, loss, body)
        storage, scalars = self.storage, (self.learning_rate, self.ent_coef, self.rounds)
        shuffled = replace(args, seed=self.minibatch_seed)  # from which the fused update draws its order
        self._fused = select_update(shuffled, self.network, self.optimizer, storage.reward, storage.mask is not None, *scalars)
        self._estimate: Any = None  # the fused one, where rollouts are fused

    def player(self, rollout: EnvRollout) -> Callable[[], None] | None:
        """The fused rollout, of environments with one agent that no wrapper stands before."""
        env = rollout.env
        if self._fused is None or env.unwrapped is not env or rollout.agents is not None:
            return None
        from gpuvec.learners.fused_ppo.fused_estimate import FusedEstimate
        from gpuvec.learners.fused_ppo.fused_rollout import FusedRollout

        update, s = self._fused, self.storage
        play = FusedRollout(update.shape, update.parameters, rollout, self.rounds, self.action_seed, 0)
        if self.return_scale is None:
            self._estimate = FusedEstimate(update.shape, self.args, self.storage.reward.shape[1], update.records, self.rounds)
        self.has_values = self.single_graph = True
        return partial(play, s.action, s.log_prob, s.value, self.last_value)

    @torch.no_grad()
    def check_rollout_finite(self) -> None:
        """Whether it is finite; the fused estimate tells that."""
        if self._estimate is None:
            super().check_rollout_finite()

    @torch.no_grad()
    def estimate(self) -> None:
        """As by torch's operations, or fused."""
        if self._estimate is None:
            super().estimate()
        else:
            self._estimate(
                self.storage, self.last_value, self.episodes, self.metrics[: len(ROLLOUT_METRICS)], self.guard.fault_rows
            )

    def improve(self) -> None:
        """Epochs of minibatches, in an order drawn anew for each epoch."""
        s, learned = self.storage, self.metrics[-len(self.learned) :]
        if self._fused is not None:
            if self._estimate is None:
                self._fused.pack(s)
            self._fused(s, learned, self.guard.fault_rows[-2:])
            return
        learned.zero_()
        self._improve()
        if self.network.normalizer is not None:  # not before: ratios are to policies of the same observations
            self.network.normalizer.update(s.obs[:-1], s.mask)
        self.check_update_finite()

    def _improve(self) -> None:
        s, a = self.storage, self.args
        rollout = Batch(s.obs[:-1], s.action, s.log_prob, s.value[:-1], s.advantage, s.target, s.mask)
        samples = s.reward.numel()
        learned = self.metrics[-len(self.learned) :]
        far = torch.zeros((), device=a.device)
        for _ in range(a.update_epochs):
            # Sorting random keys: a permutation without a host synchronisation.
            order = torch.rand(samples, generator=self.generator, device=a.device).argsort()
            shuffled = (x.flatten(0, 1).index_select(0, order).chunk(a.num_minibatches) for x in rollout if x is not None)
            for minibatch in zip(*shuffled, strict=True):
                value, metrics = self.loss(self.network, Batch(*minibatch), a, self.ent_coef)
                if a.target_kl is not None:  # on the device: Adam skips the steps at which this is 1
                    far = torch.maximum(far, (metrics[KL] > a.target_kl).float())
                    self.optimizer.found_inf = far
                norm = self.update(value)
                learned += torch.cat([metrics, norm.view(1)])
        learned /= a.update_epochs * a.num_minibatches
