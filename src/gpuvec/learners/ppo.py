"""Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford and Klimov, 2017, arXiv:1707.06347).

Rollouts and estimates are those of `on_policy`; what is learned from each is here: epochs x minibatches of Adam on the
clipped surrogate, the value loss and the entropy. The settings, `Args`, are in `args.ppo`, the objective is in `ppo_loss`.
"""

from __future__ import annotations

import torch

from gpuvec.learners.args.ppo import Args
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.policy import Seat
from gpuvec.learners.ppo_loss import Batch, loss
from gpuvec.learners.training import Result, train

__all__ = ["PPO", "Args", "Result", "train"]

KL = 3  # where the approximate KL divergence is among the metrics of the loss


class PPO(OnPolicy):
    """The policy of `seat` with the settings `args` (resolved)."""

    args: Args
    learned = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")

    def __init__(self, args: Args, seat: Seat, body: Body | None = None) -> None:
        super().__init__(args, seat, loss, body)

    def improve(self) -> None:
        """Epochs of minibatches, in an order drawn anew for each epoch."""
        s, a = self.storage, self.args
        rollout = Batch(s.obs[:-1], s.action, s.log_prob, s.value[:-1], s.advantage, s.target, s.mask)
        samples = s.reward.numel()
        learned = self.metrics[-len(self.learned) :]
        learned.zero_()
        far = torch.zeros((), device=a.device)
        for _ in range(a.epochs):
            # Sorting random keys: a permutation without a host synchronisation.
            order = torch.rand(samples, generator=self.generator, device=a.device).argsort()
            shuffled = (x.flatten(0, 1).index_select(0, order).chunk(a.minibatches) for x in rollout if x is not None)
            for minibatch in zip(*shuffled, strict=True):
                value, metrics = self.loss(self.network, Batch(*minibatch), a, self.entropy_weight)
                if a.target_kl is not None:  # on the device: Adam skips the steps for which it is told that a number overflowed
                    far = torch.maximum(far, (metrics[KL] > a.target_kl).float())
                    self.optimizer.found_inf = far  # type: ignore[attr-defined]  # which a GradScaler would set
                norm = self.update(value)
                learned += torch.cat([metrics, norm.view(1)])
        learned /= a.epochs * a.minibatches
        if self.network.normalizer is not None:  # not before: ratios are to policies of the same observations
            self.network.normalizer.update(s.obs[:-1], s.mask)
        self.look_back()
