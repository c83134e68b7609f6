"""The policy of PPO by fused kernels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.device import parse_device
from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.fused_ppo.fused_rollout import (
    NUM_TOTALS,
    FusedActions,
    FusedEstimate,
    FusedRollout,
    FusedValues,
    pool_totals,
)
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

    Rollouts run in a fused kernel if the environment has one agent, no wrappers and no action mask, and then estimates do too,
    unless `normalize_returns` is set. In other environments one kernel draws the actions of a step, and one computes V of all
    observations. Those of several agents are read where the environment writes them, unless they are normalised.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        network: the policy and the value function, whose parameters become views of the kernels' tensors.
        shape: of the network.
    """

    args: PPOArgs
    update_metrics = PPO.update_metrics

    def __init__(self, args: PPOArgs, context: PolicyContext, network: ActorCritic, shape: NetworkShape) -> None:
        rollout, agents = context.rollout, context.agents
        # The normaliser reads the observations of the rows, so they are copies then.
        self.reads_in_place = rollout.num_agents is not None and not shape.normalize
        super().__init__(args, context, network, ppo_loss)
        self._rollout, self._places = rollout, None
        if self.reads_in_place and not isinstance(rollout.obs, dict) and not agents.is_all:
            assert rollout.num_agents is not None, "a role has some of several agents"
            self._places = agents.places(rollout.env.num_envs, rollout.num_agents, args.device)
            shape = shape._replace(has_places=True)
        # The seed determines the order of the samples.
        shuffle_args = replace(args, seed=self.minibatch_seed)
        scalars = self.learning_rate, self.ent_coef, self.num_rollouts
        samples = self.buffer.reward.numel()
        self.fused_update = update = FusedUpdate(shape, shuffle_args, self.network, self.optimizer, samples, *scalars)
        env_rows = 0 if self._places is None else rollout.env.num_envs * (rollout.num_agents or 1)
        self._observation_members = update.observation_members(self._places, env_rows)
        self._action_space = context.action_space
        self.fused_estimate: FusedEstimate | None = None
        self._run_rollout: FusedRollout | None = None
        self._actions: FusedActions | None = None  # made with the first action, as a fused rollout needs none
        self._values: FusedValues | None = None
        self.totals = torch.zeros(NUM_TOTALS, dtype=torch.float64, device=args.device)  # of the rollout of a shard
        self._pooled_update: PooledUpdate | None = None

    def fused_rollout(self, rollout: EnvRollout) -> Stage | None:
        """Returns a stage that fills `rollout` by one kernel, for environments of one agent without wrappers.

        The state of an environment has scalars alone, and there are no metrics: a thread has an environment.
        """
        env, shape = rollout.env, self.fused_update.shape
        schema = env.unwrapped.simulation.schema
        if env.unwrapped is not env or not isinstance(schema, SingleAgentSchema) or shape.has_action_mask:
            return None
        if shape.rollout_bytes(shape.max_forward_rows) > nvrtc.max_shared_memory(parse_device(self.args.device)):
            return None
        buffer, num_rows, is_shard = self.buffer, env.num_envs, self.shard.count > 1
        self._run_rollout = run_rollout = FusedRollout(
            self.fused_update, rollout, self.num_rollouts, self.action_seed, 0,
            first_row=self.shard.index * num_rows if is_shard or self.shard.index else None,
        )  # fmt: skip
        if self.reward_scaler is None:
            self.fused_estimate = FusedEstimate(self.fused_update, self.args, num_rows, self.num_rollouts, is_shard)
        self.has_values = self.single_graph = True

        def fill_rollout() -> None:
            self.fused_update.read_moments(self.network.normalizer)
            run_rollout(buffer.action, buffer.log_prob, buffer.value, self.final_value)

        return fill_rollout

    @property
    def _obs(self) -> Tensor:
        """The observations that the kernels read: (T + 1, R, D), or those of all agents of an environment, (T + 1, E, A, D)."""
        if not self.reads_in_place:
            return self.buffer.obs
        obs: Tensor | dict[str, Tensor] = self._rollout.obs
        return obs[self.role] if isinstance(obs, dict) else obs

    def observations(self, row: int) -> Tensor:
        """Returns the observations of a row before each step of the last rollout, (T, D)."""
        index = row if self._places is None else int(self._places[row])
        return self._obs[:-1].flatten(1, -2)[:, index]

    @torch.no_grad()
    def act(self, t: int, episode_start: Tensor) -> Tensor:
        """Draws the actions of step `t`, and stores them with their log-probabilities; `episode_start` is not used.

        Returns the actions, (R, ...) as the environment takes them.
        """
        if self._actions is None:
            first_row = self.shard.index * self.buffer.action.shape[1]
            self._actions = FusedActions(
                self.fused_update, self.buffer, self._action_space, self.num_rollouts, self.action_seed, first_row,
                self.args.device,
            )  # fmt: skip
            self._values = FusedValues(self.fused_update, self.args.device)
        if t == 0:
            self.fused_update.read_moments(self.network.normalizer)
        else:
            self._compute_final_values_of_step(t - 1)
        return self._actions(t, self._obs[t], self._observation_members)

    def _compute_final_values_of_step(self, t: int) -> None:
        """Computes V of the final observations of step `t`, if they are read where the environment writes them.

        Only the last step has any there, so that this is called before the next one.
        """
        if not (self.reads_in_place and self.max_truncations) or self._values is None:
            return
        rollout = self._rollout
        final_obs = rollout.final_obs_at(t)
        self._values(
            self._observation_members, 1, self.agents_per_env, ended=rollout.ended[t], final_value=self.final_value[t],
            final_obs=final_obs[self.role] if isinstance(final_obs, dict) else final_obs,
        )  # fmt: skip

    def compute_values(self) -> None:
        """Computes V of all observations of this shard that have none yet."""
        if self.has_values or self._values is None:
            return
        buffer, final = self.buffer, dict[str, Any]()
        if not self.reads_in_place:
            final = {"final_obs": buffer.final_obs, "final_value": self.final_value, "ended": buffer.ended}
            final |= {"terminated": buffer.terminated}
        self._values(self._observation_members, len(buffer.reward), obs=self._obs, value=buffer.value, **final)

    @torch.no_grad()
    def finish_rollout(self) -> None:
        """Counts and checks the rollout, unless the kernel of the estimate does both."""
        if self.fused_estimate is None:
            self._compute_final_values_of_step(len(self.buffer.reward) - 1)
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
                shard.fused_update.pack_records(shard.buffer, shard._obs, shard._observation_members)
        if self._pooled_update is None:
            self.fused_update(self.buffer, *self._update_outputs())
        else:
            self._improve_with_all_shards(self._pooled_update)
        # The normaliser does not change during an update, whose probability ratios compare policies at equal observations.
        self.update_normalizers(slice(-1), [shard.buffer.mask for shard in self.shards])

    def _improve_with_all_shards(self, pooled_update: PooledUpdate) -> None:
        moments = []
        for shard in self.shards:
            update, buffer = shard.fused_update, shard.buffer
            update.sum_advantages(update.gradient_members(buffer), *shard._update_outputs(), dependent_launch=False)
            moments.append(advantage_moments(update.advantage_sums, buffer.advantage[0, 0]))
        pooled_update(self.reduce.gather(moments), [shard.buffer for shard in self.shards], *self._update_outputs())

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
            shard._observation_members |= {"moments": update.moments}
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
