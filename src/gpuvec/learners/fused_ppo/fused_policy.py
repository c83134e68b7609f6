"""The policy of PPO by fused kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.buffers.rollout_buffer import RolloutBuffer
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.fused_ppo.fused_estimate import NUM_TOTALS, FusedEstimate, pool_totals
from gpuvec.learners.fused_ppo.fused_rollout import FusedRollout
from gpuvec.learners.fused_ppo.fused_update import FusedUpdate
from gpuvec.learners.fused_ppo.network_shape import NetworkShape
from gpuvec.learners.fused_ppo.pooled_update import PooledUpdate, advantage_moments, inbox_words
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.on_policy import ROLLOUT_METRICS
from gpuvec.learners.policy import PolicyContext, Stage
from gpuvec.learners.ppo import PPO
from gpuvec.learners.shards.inboxes import make_inboxes
from gpuvec.learners.shards.pooling import Pooling, PoolRequest, pooling_of, pooling_stage
from gpuvec.learners.shards.process_group import Processes

logger = logging.getLogger(__name__)


class FusedPPO(PPO):
    """A policy that learns by PPO, whose updates run in fused kernels.

    Rollouts run in a fused kernel if the environment has one agent and no wrappers, and then estimates do too, unless
    `normalize_returns` is set.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        network: the policy and the value function, whose parameters become views of the kernels' tensors.
        shape: of the network.
    """

    def __init__(self, args: PPOArgs, context: PolicyContext, network: ActorCritic, shape: NetworkShape) -> None:
        super().__init__(args, context, network)
        # The seed determines the order of the samples.
        shuffle_args = replace(args, seed=self.minibatch_seed)
        scalars = self.learning_rate, self.ent_coef, self.num_rollouts
        samples = self.buffer.reward.numel()
        self.fused_update = FusedUpdate(shape, shuffle_args, self.network, self.optimizer, samples, *scalars)
        self.fused_estimate: FusedEstimate | None = None
        self._run_rollout: FusedRollout | None = None
        self._totals = torch.zeros(NUM_TOTALS, dtype=torch.float64, device=args.device)  # of the rollout of a shard
        self._pooled_update: PooledUpdate | None = None
        self._local_buffers: list[RolloutBuffer] = []

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

    @pooling_stage
    @torch.no_grad()
    def estimate(self) -> Pooling[None]:
        """Computes advantages, targets and the metrics of the rollout."""
        if self.fused_estimate is None:
            yield from pooling_of(super().estimate)
            return
        metrics, is_shard = self.metrics[: len(ROLLOUT_METRICS)], self.shard.count > 1
        outputs = self._totals if is_shard else metrics
        self.fused_estimate(self.buffer, self.final_value, self.episodes, outputs, self.guard.fault_rows)
        if is_shard:
            metrics.copy_(pool_totals((yield PoolRequest(self._totals)), len(self.buffer.reward)))

    @pooling_stage
    @torch.no_grad()
    def improve(self) -> Pooling[None]:
        """Takes epochs of minibatches, and writes `update_metrics`.

        The first shard of a process launches the minibatches of all its shards.
        """
        update, buffer = self.fused_update, self.buffer
        metrics, fault_rows = self.metrics[-len(self.update_metrics) :], self.guard.fault_rows[-2:]
        if self.fused_estimate is None:
            update.pack_records(buffer)
        if self.shard.count == 1:
            update(buffer, metrics, fault_rows)
            return
        update.sum_advantages(update.gradient_members(buffer), metrics, fault_rows, dependent_launch=False)
        moments = yield PoolRequest(advantage_moments(update.advantage_sums, buffer.advantage[0, 0]))
        if self._pooled_update is not None:
            self._pooled_update(moments, self._local_buffers, metrics, fault_rows)

    def share_with(self, leader: FusedPPO) -> None:
        """Uses the network and all else that belongs to no row of `leader`, the same policy of another shard of the process."""
        super().share_with(leader)
        self.fused_update.share_with(leader.fused_update)
        if self._run_rollout is not None:
            self._run_rollout.parameters = leader.fused_update.parameters

    def lead_shards(self, shards: Sequence[FusedPPO], processes: Processes) -> None:
        """Prepares the exchange of gradients, and logs how they are exchanged; all processes call it.

        Args:
            shards: the policies of all shards of this process, of which this one is the first.
            processes: the processes of the training.

        Raises:
            LostProcessError: another process ended.
        """
        shape, count = self.fused_update.shape, self.shard.count
        if count == 1:
            return
        inboxes = make_inboxes(processes, inbox_words(shape, count), self.args.device)
        if isinstance(inboxes, str):
            sums = "a gather" if processes.deterministic else "an all-reduce"
            logger.info("Fused PPO adds the gradients of %d shards by %s of NCCL: %s.", count, sums, inboxes)
        else:
            logger.info("Fused PPO adds the gradients of %d shards in its optimiser, through memory of the GPUs.", count)
        self._local_buffers = [policy.buffer for policy in shards]
        updates = [policy.fused_update for policy in shards]
        self._pooled_update = PooledUpdate(updates, count, processes, None if isinstance(inboxes, str) else inboxes)
