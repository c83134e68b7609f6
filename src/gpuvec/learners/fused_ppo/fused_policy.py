"""The policy of PPO by fused kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.fused_ppo.fused_rollout import NUM_TOTALS, FusedEstimate, FusedRollout, pool_totals
from gpuvec.learners.fused_ppo.fused_update import FusedUpdate
from gpuvec.learners.fused_ppo.network_shape import NetworkShape
from gpuvec.learners.fused_ppo.pooled_update import PooledUpdate, advantage_moments, inbox_words
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.on_policy import ROLLOUT_METRICS, OnPolicy
from gpuvec.learners.policy import PolicyContext, Stage
from gpuvec.learners.ppo import PPO, ppo_loss
from gpuvec.learners.shards.inboxes import make_inboxes
from gpuvec.learners.shards.reduce import Reduce

logger = logging.getLogger(__name__)


class FusedPPO(OnPolicy):
    """A policy that learns by PPO, whose updates run in fused kernels.

    Rollouts run in a fused kernel if the environment has one agent and no wrappers, and then estimates do too, unless
    `normalize_returns` is set.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        network: the policy and the value function, whose parameters become views of the kernels' tensors.
        shape: of the network.
    """

    args: PPOArgs
    update_metrics = PPO.update_metrics

    def __init__(self, args: PPOArgs, context: PolicyContext, network: ActorCritic, shape: NetworkShape) -> None:
        super().__init__(args, context, network, ppo_loss)
        # The seed determines the order of the samples.
        shuffle_args = replace(args, seed=self.minibatch_seed)
        scalars = self.learning_rate, self.ent_coef, self.num_rollouts
        samples = self.buffer.reward.numel()
        self.fused_update = FusedUpdate(shape, shuffle_args, self.network, self.optimizer, samples, *scalars)
        self.fused_estimate: FusedEstimate | None = None
        self._run_rollout: FusedRollout | None = None
        self.totals = torch.zeros(NUM_TOTALS, dtype=torch.float64, device=args.device)  # of the rollout of a shard
        self._pooled_update: PooledUpdate | None = None

    def fused_rollout(self, rollout: EnvRollout) -> Stage | None:
        """Returns a stage that fills `rollout` by one kernel, for environments of one agent without wrappers.

        The state of an environment has scalars alone, and there are no metrics: a thread has an environment.
        """
        env, shape = rollout.env, self.fused_update.shape
        schema = env.unwrapped.simulation.schema
        if env.unwrapped is not env or not isinstance(schema, SingleAgentSchema):
            return None
        buffer, num_rows, is_shard = self.buffer, env.num_envs, self.shard.count > 1
        self._run_rollout = FusedRollout(
            shape, self.fused_update.parameters, rollout, self.num_rollouts, self.action_seed, 0,
            first_row=self.shard.index * num_rows if is_shard or self.shard.index else None,
        )  # fmt: skip
        if self.reward_scaler is None:
            records = self.fused_update.records
            self.fused_estimate = FusedEstimate(shape, self.args, num_rows, records, self.num_rollouts, is_shard)
        self.has_values = self.single_graph = True
        return partial(self._run_rollout, buffer.action, buffer.log_prob, buffer.value, self.final_value)

    @torch.no_grad()
    def finish_rollout(self) -> None:
        """Counts and checks the rollout, unless the kernel of the estimate does both."""
        if self.fused_estimate is None:
            super().finish_rollout()

    @torch.no_grad()
    def estimate(self) -> None:
        """Computes advantages, targets and the metrics of the rollout."""
        if self.fused_estimate is None:
            super().estimate()
            return
        metrics, is_shard = self.metrics[: len(ROLLOUT_METRICS)], self.reduce.count > 1
        for shard in self.shards:
            outputs = shard.totals if is_shard else metrics
            shard.fused_estimate(shard.buffer, shard.final_value, shard.episodes, outputs, shard.guard.fault_rows)
        if is_shard:
            totals = self.reduce.gather([shard.totals for shard in self.shards])
            metrics.copy_(pool_totals(totals, len(self.buffer.reward)))

    @torch.no_grad()
    def improve(self) -> None:
        """Takes epochs of minibatches, and writes `update_metrics`."""
        if self.fused_estimate is None:
            for shard in self.shards:
                shard.fused_update.pack_records(shard.buffer)
        if self._pooled_update is None:
            self.fused_update(self.buffer, *self._update_outputs())
            return
        moments = []
        for shard in self.shards:
            update, buffer = shard.fused_update, shard.buffer
            update.sum_advantages(update.gradient_members(buffer), *shard._update_outputs(), dependent_launch=False)
            moments.append(advantage_moments(update.advantage_sums, buffer.advantage[0, 0]))
        self._pooled_update(self.reduce.gather(moments), [shard.buffer for shard in self.shards], *self._update_outputs())

    def _update_outputs(self) -> tuple[Tensor, Tensor]:
        """Returns where an update of this shard writes its metrics, and whether they and the parameters are finite."""
        return self.metrics[-len(self.update_metrics) :], self.guard.fault_rows[-2:]

    def lead(self, shards: Sequence[FusedPPO], reduce: Reduce) -> None:
        """Is called on the policy of the first shard of a process, as in `Policy`; logs how gradients are exchanged.

        Args:
            shards, reduce: as in `Policy`.

        Raises:
            LostProcessError: another process ended.
        """
        super().lead(shards, reduce)
        update, count, processes = self.fused_update, reduce.count, reduce.processes
        for shard in shards[1:]:
            shard.fused_update.share_with(update)
            if shard._run_rollout is not None:
                shard._run_rollout.parameters = update.parameters
        if count == 1:
            return
        inboxes = make_inboxes(processes, inbox_words(update.shape, count), self.args.device)
        if isinstance(inboxes, str):
            sums = "a gather" if processes.deterministic else "an all-reduce"
            logger.info("Fused PPO adds the gradients of %d shards by %s of NCCL: %s.", count, sums, inboxes)
        else:
            logger.info("Fused PPO adds the gradients of %d shards in its optimiser, through memory of the GPUs.", count)
        updates = [shard.fused_update for shard in shards]
        self._pooled_update = PooledUpdate(updates, count, processes, None if isinstance(inboxes, str) else inboxes)
