"""The policy of PPO by fused kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.fused_ppo.fused_estimate import FusedEstimate
from gpuvec.learners.fused_ppo.fused_rollout import FusedRollout
from gpuvec.learners.fused_ppo.fused_update import FusedUpdate
from gpuvec.learners.fused_ppo.network_shape import NetworkShape
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.on_policy import ROLLOUT_METRICS
from gpuvec.learners.policy import PolicyContext, Stage
from gpuvec.learners.ppo import PPO


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

    def fused_rollout(self, rollout: EnvRollout) -> Stage | None:
        """Returns a stage that fills `rollout` by one kernel, for environments of one agent without wrappers.

        The state of an environment has scalars alone, and there are no metrics: a thread has an environment.
        """
        env, shape = rollout.env, self.fused_update.shape
        schema = env.unwrapped.simulation.schema
        if env.unwrapped is not env or not isinstance(schema, SingleAgentSchema):
            return None
        run_rollout = FusedRollout(shape, self.fused_update.parameters, rollout, self.num_rollouts, self.action_seed, 0)
        buffer = self.buffer
        if self.reward_scaler is None:
            rows = buffer.reward.shape[1]
            self.fused_estimate = FusedEstimate(shape, self.args, rows, self.fused_update.records, self.num_rollouts)
        self.has_values = self.single_graph = True
        return partial(run_rollout, buffer.action, buffer.log_prob, buffer.value, self.final_value)

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
        else:
            metrics = self.metrics[: len(ROLLOUT_METRICS)]
            self.fused_estimate(self.buffer, self.final_value, self.episodes, metrics, self.guard.fault_rows)

    def improve(self) -> None:
        """Takes epochs of minibatches, and writes `update_metrics`."""
        if self.fused_estimate is None:
            self.fused_update.pack_records(self.buffer)
        self.fused_update(self.buffer, self.metrics[-len(self.update_metrics) :], self.guard.fault_rows[-2:])
