"""The common part of A2C and PPO: rollouts of the policy that learns, and estimates of advantages.

Two stages follow a rollout:

- `estimate` computes V of all observations, generalised advantages, and targets of the value function.
- `improve` is the update of the algorithm.

In a multi-agent environment a row is an agent, and the mask says in which steps it acted. Losses do not include other steps.
The rewards of an agent that waits for its turn belong to its last action.

Letters: T steps, R rows, D observation features, K action components.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.memory_check import FLOAT32_BYTES, require_memory
from gpuvec.learners.buffers.rollout_buffer import RolloutBuffer, Samples
from gpuvec.learners.config.schedule import interpolate, remaining_share
from gpuvec.learners.config.training_config import OnPolicyArgs
from gpuvec.learners.cuda_graphs.guard import ALLOWED, LEARNED, Guard
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.estimators.advantage import AdvantageEstimator, compute_final_values
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics, episode_metrics
from gpuvec.learners.estimators.reward_scaling import RewardScaler
from gpuvec.learners.metric_names import EPISODE_METRICS
from gpuvec.learners.networks.actor_critic import ActorCritic, Body, features_of, outputs_of
from gpuvec.learners.networks.cnn import default_body
from gpuvec.learners.networks.mlp import seeded_weights
from gpuvec.learners.own_loss import StandardLoss, flat_samples, probe_loss, probe_metrics, with_own_loss
from gpuvec.learners.policy import Policy, PolicyContext, Stage, optimizer_state
from gpuvec.learners.sampling.sampler import ActionSample
from gpuvec.learners.seeds import WEIGHTS, stream_seed
from gpuvec.learners.shards.reduce import Reduce

ROLLOUT_METRICS = (*EPISODE_METRICS, "explained_variance")
# As in the implementations of the papers' authors.
ADAM_EPS = 1e-5


class OnPolicy(Policy):
    """A policy that learns from its own rollouts, the base class of A2C and PPO.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        network: the policy and the value function; it is moved to the device.
        loss: `loss(network, samples, args, ent_coef)` returns the loss, (), and its metrics, (N,).

    Raises:
        OutOfMemoryError: the buffer of a rollout does not fit into the memory that is free.
    """

    args: OnPolicyArgs
    network: ActorCritic
    update_metrics: tuple[str, ...] = ()
    """Names of the metrics that `improve` passes to `finish_update`: those of the loss, and then the norm of the gradient.

    Of an object they contain those of the user's loss, before the norm, and of `metrics=`, after it.
    """
    shared_attributes = ("network", "parameters", "optimizer", "learning_rate", "ent_coef")
    shared_state = ("network", "optimizer")

    def __init__(self, args: OnPolicyArgs, context: PolicyContext, network: ActorCritic, loss: StandardLoss) -> None:
        super().__init__(args, context)
        device, R = args.device, self.rows.reward.shape[1]
        self.network = network.to(device)
        self.parameters = dict(self.network.named_parameters())
        self.learning_rate = torch.tensor(args.learning_rate, device=device)
        self.ent_coef = torch.tensor(args.ent_coef, device=device)
        self.optimizer = Adam(self.parameters.values(), self.learning_rate, eps=ADAM_EPS)
        self.buffer, self.final_value = self._allocate_buffer()
        self._set_loss_and_metrics(context, loss)
        self.max_truncations = context.rollout.max_truncations
        # Whether the network computes V with the policy, in each step of a rollout.
        self.value_with_policy = hasattr(self.network.body, "both") and not self.network.has_critic_obs
        # Whether V of all observations is in the buffer when `estimate` begins.
        self.has_values = False
        self.episodes = EpisodeStatistics.initial(R, device)
        self.advantage = AdvantageEstimator(device, args.gamma, args.gae_lambda)
        self.reward_scaler = RewardScaler(R, args.gamma, device) if args.normalize_returns else None
        self.entropy = torch.zeros(R, device=device)  # of the policy in the last step
        self.has_action_mask = hasattr(self.network.body, "allowed") or context.has_action_mask
        checks = {"collect": ("a reward", "the policy's log-probability of an action"), "estimate": ("a value", "an advantage")}
        self.guard = Guard({"act": (ALLOWED,), **checks} if self.has_action_mask else checks, LEARNED, device)
        self.stages = (self.estimate, self.improve)

    def _set_loss_and_metrics(self, context: PolicyContext, loss: StandardLoss) -> None:
        """Sets the loss of a minibatch and the names of all metrics, with those of the user."""
        samples = self.buffer.samples()
        of_loss: tuple[str, ...] = ()
        self.own_metrics = dict(context.metrics or {})
        taken = ROLLOUT_METRICS + self.update_metrics
        if context.loss is not None:
            of_loss = probe_loss(context.loss, self.network, samples, self.args, taken)
            loss = with_own_loss(loss, context.loss, of_loss)
        probe_metrics(self.own_metrics, self.network, samples, taken + of_loss)
        self.loss = torch.compile(loss, fullgraph=True, dynamic=False) if self.args.compile else loss
        self.update_metrics = (*self.update_metrics[:-1], *of_loss, *self.update_metrics[-1:], *self.own_metrics)
        self.metric_names = ROLLOUT_METRICS + self.update_metrics
        self.metrics = torch.zeros(len(self.metric_names), dtype=torch.float64, device=self.args.device)

    @staticmethod
    def make_network(
        args: OnPolicyArgs,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        body: Body | None = None,
        role: str = ALL,
        critic_space: gym.Space[Any] | None = None,
    ) -> ActorCritic:
        """Returns the network of a role's policy with its initial weights.

        Args:
            args: the settings.
            observation_space, action_space: of one agent.
            body: makes the network, see `networks.actor_critic`; None for one as in `args`: a perceptron, or for images a
                convolution and a perceptron.
            role: the initial weights depend on it.
            critic_space: the space of the critic's observation of one agent; None if the environment has none.

        Raises:
            TypeError, ValueError: a body that does not fit, or a space of another kind.
        """
        if body is not None and args.precision != "tf32":
            raise ValueError(
                f"precision={args.precision!r} is for the layers of `hidden`; your own body determines its precision."
            )

        critic = () if critic_space is None else (critic_space,)
        with seeded_weights(stream_seed(args.seed, WEIGHTS, role)):
            if body is None:
                module = default_body(args, observation_space, outputs_of(action_space), *map(features_of, critic))
            else:
                module = body(observation_space, action_space, *critic)
            return ActorCritic(observation_space, action_space, module, args.normalize, critic_space)

    @torch.no_grad()
    def _allocate_buffer(self) -> tuple[RolloutBuffer, Tensor]:
        """Returns the buffer, and (T, R) for V of final observations."""
        rows, device = self.rows, self.args.device
        T, R = rows.reward.shape
        obs = torch.zeros(1, *rows.obs.shape[2:], dtype=rows.obs.dtype, device=device)
        action = self.network.policy(obs).mode()
        needed = T * R * (5 * FLOAT32_BYTES + action[0].numel() * action.element_size())
        require_memory(device, needed, f"the buffer of a rollout of {T:,} steps of {R:,} rows")
        log_prob, advantage, target, final_value = torch.zeros(4, T, R, device=device)
        buffer = RolloutBuffer(
            **rows._asdict(), action=action.new_zeros((T, R, *action.shape[1:])), log_prob=log_prob,
            value=torch.zeros(T + 1, R, device=device), advantage=advantage, target=target,
        )  # fmt: skip
        return buffer, final_value

    def lead(self, shards: Sequence[Any], reduce: Reduce) -> None:
        """Is called on the policy of the first shard of a process, as in `Policy`; the shards then have its moments of rewards.

        Args:
            shards, reduce: as in `Policy`.
        """
        super().lead(shards, reduce)
        if self.reward_scaler is not None:
            for shard in shards:
                shard.reward_scaler.moments = self.reward_scaler.moments

    def tensors_without_rows(self) -> Iterator[Tensor]:
        """Yields the tensors of the state that belong to no row, of any shapes (...)."""
        yield from super().tensors_without_rows()
        if self.reward_scaler is not None:
            yield from self.reward_scaler.moments.state_dict().values()

    def begin(self) -> None:
        """Updates the normalisers with the first observations."""
        self.update_normalizers(-1, [None] * len(self.shards))

    def update_normalizers(self, steps: int | slice, masks: Sequence[Tensor | None]) -> None:
        """Updates the normalisers, if there are any, with observations of all shards.

        Args:
            steps: the index of those of the T + 1 observations that are used.
            masks: (T, R) bool for each shard of this process: the samples that count; None for all.
        """
        network, buffers = self.network, [shard.buffer for shard in self.shards]
        if network.normalizer is not None:
            self.reduce.update_normalizer(network.normalizer, [buffer.obs[steps] for buffer in buffers], masks)
        if network.critic_normalizer is not None:
            self.reduce.update_normalizer(network.critic_normalizer, [buffer.value_obs[steps] for buffer in buffers], masks)

    def act(self, t: int, episode_start: Tensor) -> Tensor:
        """Draws the actions of step `t`, and stores them with their log-probabilities; `episode_start` is not used.

        Returns the actions, (R, ...) as the environment takes them.
        """
        buffer, network, action_mask = self.buffer, self.network, self.rows.action_mask_at(t)
        if self.value_with_policy:
            policy, value = network.both(buffer.obs[t], action_mask)
            buffer.value[t].copy_(value)
        else:
            policy = network.policy(buffer.obs[t], action_mask)
        policy.draw(self.sampler, self.num_rollouts, t, ActionSample(buffer.action[t], buffer.log_prob[t], self.entropy))
        return network.control(buffer.action[t])

    def finish_rollout(self) -> None:
        """Counts the rollout, and checks that it is finite and that each row had an allowed action in each step."""
        super().finish_rollout()
        buffer = self.buffer
        if self.has_action_mask:
            samples = buffer.samples()
            self.guard.check_allowed(self.network.any_allowed(samples.obs, samples.action_mask), samples.mask)
        self.guard.check_rows_finite("collect", buffer.reward, buffer.log_prob)

    @torch.no_grad()
    def estimate(self) -> None:
        """Computes advantages and targets, from V of each step's successor, and the metrics of the rollout.

        The successor of the last step of a truncated episode is the final observation.
        """
        buffers = [shard.buffer for shard in self.shards]
        for shard in self.shards:
            shard.compute_values()
        rewards = [buffer.reward * self.args.reward_scale for buffer in buffers]
        if self.reward_scaler is not None:
            pairs = zip(self.shards, rewards, strict=True)
            returns = [s.reward_scaler.returns(reward, s.rows.done, s.buffer.mask) for s, reward in pairs]
            self.reduce.update_normalizer(self.reward_scaler.moments, returns, [buffer.in_episode for buffer in buffers])
            rewards = [reward / self.reward_scaler.deviation for reward in rewards]
        for shard, reward in zip(self.shards, rewards, strict=True):
            shard.compute_advantages(reward)
        sums = self.reduce.sum([s.episodes.add(s.buffer.reward, s.rows.done, s.buffer.mask).sum(1) for s in self.shards])
        advantage, target = self.reduce.var_means(
            [[buffer.advantage, buffer.target] for buffer in buffers], [[buffer.mask] * 2 for buffer in buffers]
        )
        # The advantage is target - value, so this is the part of the targets' variance that V does not explain.
        unexplained = advantage[0] / target[0]
        self.metrics[: len(EPISODE_METRICS)] = episode_metrics(sums)
        self.metrics[len(EPISODE_METRICS)] = 1.0 - unexplained

    def compute_values(self) -> None:
        """Computes V of all observations of this shard that have none yet."""
        buffer = self.buffer
        if not self.has_values:
            missing = slice(-1, None) if self.value_with_policy else slice(None)
            buffer.value[missing] = self.network.value(buffer.value_obs[missing])
            self.compute_final_values()

    def compute_advantages(self, reward: Tensor) -> None:
        """Computes the advantages and targets of this shard for scaled rewards, `reward` (T, R), and checks them."""
        buffer = self.buffer
        inputs = reward, buffer.value, self.final_value, buffer.terminated, buffer.ended
        self.advantage(*inputs, out=(buffer.advantage, buffer.target), mask=buffer.mask)
        self.guard.check_rows_finite("estimate", buffer.value, buffer.advantage)

    def compute_final_values(self) -> None:
        """Computes V of the final observations of truncated episodes into `final_value`; its other elements are undefined."""
        buffer = self.buffer
        truncated = buffer.ended & ~buffer.terminated
        compute_final_values(self.network.value, buffer.final_value_obs, truncated, self.max_truncations, self.final_value)

    def improve(self) -> None:
        """Updates the network from the rollouts of all shards, and writes `update_metrics`."""
        raise NotImplementedError

    def differentiate(self, minibatches: Sequence[Samples], *inputs: Any) -> Tensor:
        """Computes the gradient of the mean loss of all shards, and stores it as `grad` of the parameters.

        Args:
            minibatches: the samples of each shard of this process.
            inputs: of the loss, besides network, samples, settings and the coefficient of the entropy bonus.

        Returns:
            The metrics of the loss over the samples of all shards, (N,).
        """
        parameters, means = list(self.parameters.values()), []
        for samples in minibatches:
            loss, metrics = self.loss(self.network, samples, self.args, self.ent_coef, *inputs)
            # A loss of a user may leave out a part of the network.
            means.append([*torch.autograd.grad(loss, parameters, materialize_grads=True), metrics])
        *gradient, metrics = self.reduce.mean(means, [samples.mask for samples in minibatches])
        for p, g in zip(parameters, gradient, strict=True):
            p.grad = g
        return metrics

    def optimize(self) -> Tensor:
        """Takes one step of Adam against `grad` of the parameters; returns the norm of the gradient before clipping, ()."""
        return self.optimizer.step(self.args.max_grad_norm)

    def finish_update(self, means: Tensor) -> None:
        """Writes metrics, updates the normaliser, and checks that metrics and parameters are finite, at the end of `improve`.

        Args:
            means: (N,): means over the minibatches of the metrics of the loss, and of the norm of the gradient.
        """
        update_metrics = self.metrics[len(ROLLOUT_METRICS) :]
        update_metrics[: len(means)] = means
        masks = [shard.buffer.mask for shard in self.shards]
        if self.own_metrics:
            with torch.no_grad():
                samples = [flat_samples(shard.buffer.samples()) for shard in self.shards]
                values = [[compute(self.network, x).double() for compute in self.own_metrics.values()] for x in samples]
            update_metrics[len(means) :] = torch.stack(self.reduce.mean(values, masks))
        # The normaliser does not change during an update, whose probability ratios compare policies at equal observations.
        self.update_normalizers(slice(-1), masks)
        self.check_update_finite()

    @torch.no_grad()
    def check_update_finite(self) -> None:
        """Checks that the metrics of the update and all parameters are finite."""
        self.guard.check_update_finite(self.metrics[-len(self.update_metrics) :], self.parameters.values())

    def begin_update(self, iteration: int) -> tuple[Stage, ...]:
        """Sets learning rate and entropy coefficient of `iteration`, counted from 0; returns the stages of its update."""
        args, steps = self.args, iteration * self.args.steps_per_iteration
        if args.learning_rate_table:
            self.learning_rate.fill_(interpolate(args.learning_rate_table, steps))
        elif args.anneal_lr:
            self.learning_rate.fill_(args.learning_rate * remaining_share(iteration, args.iterations))
        if args.ent_coef_table:
            self.ent_coef.fill_(interpolate(args.ent_coef_table, steps))
        return self.stages

    def checked_values(self) -> dict[str, Tensor]:
        """Returns the numbers of the last rollout that are checked to be finite, {name: (T, R)}."""
        buffer = self.buffer
        return {"reward": buffer.reward, "log-probability": buffer.log_prob, "value": buffer.value[:-1]}

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors that the next iteration depends on, as nested dicts."""
        reward_scaler = {} if self.reward_scaler is None else self.reward_scaler.state_tensors()
        return {
            "network": self.network.state_dict(), "optimizer": optimizer_state(self.optimizer, self.parameters),
            "episodes": self.episodes._asdict(), "reward_scaler": reward_scaler, **super().state_tensors(),
        }  # fmt: skip
