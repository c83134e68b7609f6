"""Deep deterministic policy gradient (DDPG), and TD3.

Lillicrap, Hunt, Pritzel, Heess, Erez, Tassa, Silver and Wierstra, 2016, arXiv:1509.02971. TD3 (Fujimoto, van Hoof and Meger,
2018, arXiv:1802.09477) has two critics, delayed updates of the policy and smoothed targets; its settings are `TD3Args`.

Two stages follow a rollout of the policy with noise:

- `store` adds the transitions, with up to n rewards each, to the replay buffer.
- `improve` takes gradient steps on batches: the critics towards their targets, the actor up the first critic, and the
  target networks towards both.

Letters: T steps, R rows, B transitions of a batch, D observation features, K action components, C critics.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from gpuvec.learners.algorithms import ALL, algorithm_name
from gpuvec.learners.buffers.memory_check import FLOAT32_BYTES, require_memory
from gpuvec.learners.buffers.replay_buffer import ReplayBuffer, Transitions
from gpuvec.learners.config.training_config import DDPGArgs, TD3Args
from gpuvec.learners.cuda_graphs.guard import LEARNED, Guard
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics, episode_metrics
from gpuvec.learners.estimators.masked_moments import masked_mean
from gpuvec.learners.metric_names import EPISODE_METRICS
from gpuvec.learners.networks.actor_critic import Body, features_of
from gpuvec.learners.networks.deterministic import Critic, DeterministicActorCritic, require_bounded_box
from gpuvec.learners.networks.mlp import POLICY_GAIN, make_mlp, seeded_weights
from gpuvec.learners.policy import Policy, PolicyContext, Stage, optimizer_state
from gpuvec.learners.seeds import WEIGHTS, stream_seed
from gpuvec.learners.training import Result, train

__all__ = ["DDPG", "DDPGArgs", "Result", "TD3Args", "train"]

TARGET_NOISE_CLIP = 2.5  # standard deviations, as in the TD3 paper: 0.5 for a sigma of 0.2


class DDPG(Policy):
    """A policy that learns by DDPG or TD3.

    Args:
        args: the settings, resolved.
        context: spaces, rollout and role of the policy.
        network: the policy and its critics; it is moved to the device.

    Raises:
        OutOfMemoryError: the replay buffer does not fit into the memory that is free.
    """

    args: DDPGArgs
    network: DeterministicActorCritic
    metric_names = (*EPISODE_METRICS, "critic_loss", "value", "critic_norm", "actor_loss", "actor_norm")
    shared_attributes = (
        "network", "actor", "critics", "target_actor", "target_critics", "actor_optimizer", "critic_optimizer"
    )  # fmt: skip
    shared_state = ("network", "target_actor", "target_critics", "actor_optimizer", "critic_optimizer")

    def __init__(self, args: DDPGArgs, context: PolicyContext, network: DeterministicActorCritic) -> None:
        super().__init__(args, context)
        device, (T, R) = args.device, self.rows.reward.shape
        self.network = network.to(device)
        self.actor, self.critics = (dict(part.named_parameters()) for part in (self.network.actor, self.network.critics))
        self.target_actor, self.target_critics = copy.deepcopy((self.network.actor, self.network.critics))
        actor_rate, critic_rate = (
            torch.tensor(rate, device=device) for rate in (args.actor_learning_rate, args.critic_learning_rate)
        )
        self.actor_optimizer = Adam(self.actor.values(), actor_rate, eps=1e-8)
        self.critic_optimizer = Adam(self.critics.values(), critic_rate, eps=1e-8)
        components = len(self.network.half_range)
        self.action = torch.zeros(T, R, components, device=device)
        features, has_mask = self.rows.obs.shape[2], self.rows.mask is not None
        # The last step before a rollout has the actions that are still pending.
        max_steps = max(args.buffer_size // (R * self.shard.count), T + has_mask)
        transition_bytes = (2 * features + components + 2) * FLOAT32_BYTES + has_mask
        require_memory(device, max_steps * R * transition_bytes, f"a replay buffer of {max_steps * R:,} transitions")
        self.replay = ReplayBuffer.allocate(max_steps, R, features, components, device, has_mask)
        self.episodes = EpisodeStatistics.initial(R, device)
        self.guard = Guard({"collect": ("a reward", "an action")}, LEARNED, device)
        self.noise = torch.zeros(R, components, device=device)
        self.action_bounds = torch.tensor([[-1.0], [1.0]], device=device).repeat(1, components)  # of the network's actions
        # The gradient steps that update the actor repeat after `num_variants` iterations; a graph is captured of each variant.
        num_variants = args.policy_delay // math.gcd(args.policy_delay, args.gradient_steps)
        self.improve_variants: tuple[Stage, ...] = tuple(partial(self.improve, k) for k in range(num_variants))
        self.stages = (self.store, *self.improve_variants)

    @staticmethod
    def make_network(
        args: DDPGArgs,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        body: Body | None = None,
        role: str = ALL,
        critic_space: gym.Space[Any] | None = None,
    ) -> DeterministicActorCritic:
        """Returns the networks of a role's policy with their initial weights.

        Args:
            args: the settings.
            observation_space, action_space: of one agent.
            body: makes the networks, see `networks.deterministic`; None for perceptrons as in `args`.
            role: the initial weights depend on it.
            critic_space: must be None.

        Raises:
            TypeError, ValueError: a body that does not fit, a space of another kind, or an environment with observations of a
                critic.
        """
        name = algorithm_name(args)
        if critic_space is not None:
            raise ValueError(
                f"the environment has critic_observation, which {name} does not use, since its critics take the observation of "
                "an agent and its action: use PPO or A2C, or an environment without it."
            )
        if len(observation_space.shape or ()) != 1:
            raise ValueError(
                f"the observation space is {observation_space}; {name} takes observations of shape (D,): use PPO or A2C."
            )
        spaces = observation_space, action_space
        features, components = features_of(observation_space), require_bounded_box(action_space).shape[0]
        with seeded_weights(stream_seed(args.seed, WEIGHTS, role)):
            if body is None:
                actor: nn.Module = make_mlp((features, *args.hidden, components), POLICY_GAIN, nn.ReLU)
                critics: list[nn.Module] = [Critic(features, components, args.hidden) for _ in range(args.critics)]
            else:
                bodies: list[Any] = [body(*spaces) for _ in range(args.critics)]
                for part in bodies:
                    for module in ("actor", "critic"):
                        if not isinstance(getattr(part, module, None), nn.Module):
                            calls = "ddpg calls actor(obs) and critic(obs, action)"
                            raise TypeError(f"{type(part).__name__} has no module {module!r}: {calls}.")
                actor, critics = bodies[0].actor, [part.critic for part in bodies]
        return DeterministicActorCritic(*spaces, actor, critics, args.normalize)

    def begin(self) -> None:
        """Updates the normaliser with the first observations."""
        if self.network.normalizer is not None:
            obs = [shard.rows.obs[-1] for shard in self.shards]
            self.reduce.update_normalizer(self.network.normalizer, obs, [None] * len(obs))

    def act(self, t: int, episode_start: Tensor) -> Tensor:
        """Returns the policy's actions in step `t` plus noise, (R, K); before `learning_starts` uniformly distributed actions.

        The noise of an environment starts at 0 where `episode_start`, (E,) bool, is true.
        """
        network, (low, high) = self.network, self.action_bounds
        mean = network.act(network.actor, network.normalize_obs(self.rows.obs[t]))
        reset = episode_start.unsqueeze(1).expand(-1, self.agents_per_env).reshape(-1)
        action = self.sampler.ornstein_uhlenbeck(
            mean, self.noise, reset, low, high, self.num_rollouts, t, sigma=self.args.sigma,
            theta=self.args.theta, uniform_iterations=self.args.uniform_iterations,
        )  # fmt: skip
        return network.unscale(action, out=self.action[t])

    def finish_rollout(self) -> None:
        """Counts the rollout and checks that it is finite."""
        super().finish_rollout()
        self.guard.check_rows_finite("collect", self.rows.reward, self.action)

    def checked_values(self) -> dict[str, Tensor]:
        """Returns the numbers of the last rollout that are checked to be finite, {name: (T, R) or (T, R, K)}."""
        return {"reward": self.rows.reward, "action": self.action}

    @torch.no_grad()
    def store(self) -> None:
        """Adds the rollout to the replay buffer, and writes its metrics."""
        args, all_rows = self.args, [shard.rows for shard in self.shards]
        for shard, rows in zip(self.shards, all_rows, strict=True):
            shard.replay.add_rollout(rows, shard.action, rows.reward * args.reward_scale, args.gamma, args.n_step)
        sums = self.reduce.sum([s.episodes.add(s.rows.reward, s.rows.done, s.rows.mask).sum(1) for s in self.shards])
        self.metrics[: len(EPISODE_METRICS)] = episode_metrics(sums)
        if self.network.normalizer is not None:
            masks = [rows.mask for rows in all_rows]
            self.reduce.update_normalizer(self.network.normalizer, [rows.obs[:-1] for rows in all_rows], masks)

    def improve(self, variant: int) -> None:
        """Takes the gradient steps of an iteration, and writes their metrics.

        Args:
            variant: the iteration, counted from 0, modulo the number of variants; it determines which steps update the actor.
        """
        args, update_metrics = self.args, self.metrics[len(EPISODE_METRICS) :]
        critic_metrics, actor_metrics = update_metrics[:3], update_metrics[3:]
        update_metrics.zero_()
        actor_updates = 0
        for k in range(args.gradient_steps):
            batches = [shard.replay.sample(args.batch_size // self.shard.count, shard.generator) for shard in self.shards]
            critic_metrics += self.update_critics(batches) / args.gradient_steps
            if (variant * args.gradient_steps + k + 1) % args.policy_delay == 0:
                actor_metrics += self.update_actor(batches)
                actor_updates += 1
                self.update_targets()
        actor_metrics /= max(actor_updates, 1)
        with torch.no_grad():
            self.guard.check_update_finite(update_metrics, (*self.actor.values(), *self.critics.values()))

    def update_critics(self, batches: Sequence[Transitions]) -> Tensor:
        """Takes one step of the critics towards their targets on `batches`, (B,) of each shard.

        Returns (3,): the loss, the mean value, and the norm of the gradient.
        """
        losses = (self._critic_loss(batch, shard.generator) for batch, shard in zip(batches, self.shards, strict=True))
        return self._take_step(self.critic_optimizer, self.critics, losses, batches)

    def _critic_loss(self, batch: Transitions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the loss of the critics on a `batch`, (B,), and (2,) metrics: the loss, and the mean value."""
        network = self.network
        with torch.no_grad():
            obs, next_obs = network.normalize_obs(batch.obs), network.normalize_obs(batch.next_obs)
            next_action = self._smooth(network.act(self.target_actor, next_obs), generator)
            next_value = network.values(self.target_critics, next_obs, next_action).amin(0)
            target = batch.reward + batch.discount * next_value
        values = network.values(network.critics, obs, network.scale(batch.action))  # (C, B)
        loss = torch.stack([masked_mean(error, batch.mask) for error in (values - target).square()]).sum()
        mean_value = torch.stack([masked_mean(value, batch.mask) for value in values.detach()]).mean()
        return loss, torch.stack([loss.detach(), mean_value])

    def _smooth(self, action: Tensor, generator: torch.Generator) -> Tensor:
        """Adds clipped noise to the target policy's `action`, (B, K): TD3's target policy smoothing."""
        sigma = self.args.target_sigma
        if sigma == 0.0:
            return action
        noise = torch.empty_like(action).normal_(0.0, sigma, generator=generator)
        noise = noise.clamp_(-TARGET_NOISE_CLIP * sigma, TARGET_NOISE_CLIP * sigma)
        return (action + noise).clamp_(-1.0, 1.0)

    def update_actor(self, batches: Sequence[Transitions]) -> Tensor:
        """Takes one step of the actor up the first critic on `batches`, (B,) of each shard.

        Returns (2,): the loss, and the norm of the gradient.
        """
        return self._take_step(self.actor_optimizer, self.actor, map(self._actor_loss, batches), batches)

    def _actor_loss(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Returns the loss of the actor on a `batch`, (B,), and (1,) metrics: the loss."""
        network = self.network
        obs = network.normalize_obs(batch.obs)
        (value,) = network.values(network.critics[:1], obs, network.act(network.actor, obs))
        loss = -masked_mean(value, batch.mask)
        return loss, loss.detach().view(1)

    def _take_step(
        self,
        optimizer: Adam,
        parameters: Mapping[str, Tensor],
        losses: Iterable[tuple[Tensor, Tensor]],
        batches: Sequence[Transitions],
    ) -> Tensor:
        """Takes one step of `optimizer` against the gradient of the mean loss by `parameters` alone.

        Args:
            optimizer: the optimiser of these parameters.
            parameters: {name: parameter}.
            losses: for each shard of this process the loss, (), and metrics, (N,), which are means over its batch.
            batches: the batch of each shard, (B,).

        Returns:
            (N + 1,): the metrics over the batches of all shards, and the norm of the gradient.
        """
        means = [[*torch.autograd.grad(loss, list(parameters.values())), metrics] for loss, metrics in losses]
        *gradient, metrics = self.reduce.mean(means, [batch.mask for batch in batches])
        for p, g in zip(parameters.values(), gradient, strict=True):
            p.grad = g
        return torch.cat([metrics, optimizer.step().view(1)])

    @torch.no_grad()
    def update_targets(self) -> None:
        """Moves the target networks towards the networks, by a share of `tau` of the difference."""
        networks: list[Tensor] = [*self.actor.values(), *self.critics.values()]
        targets: list[Tensor] = [*self.target_actor.parameters(), *self.target_critics.parameters()]
        torch._foreach_lerp_(targets, networks, self.args.tau)

    def begin_update(self, iteration: int) -> tuple[Stage, ...]:
        """Returns the stages of `iteration`, counted from 0: without `improve` before `learning_starts`."""
        if iteration + 1 < self.args.uniform_iterations:
            return (self.store,)
        return (self.store, self.improve_variants[iteration % len(self.improve_variants)])

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors that the next iteration depends on, as nested dicts."""
        return {
            "network": self.network.state_dict(),
            "target_actor": self.target_actor.state_dict(), "target_critics": self.target_critics.state_dict(),
            "actor_optimizer": optimizer_state(self.actor_optimizer, self.actor),
            "critic_optimizer": optimizer_state(self.critic_optimizer, self.critics),
            "replay": self.replay.state_tensors(),
            "episodes": self.episodes._asdict(), "noise": self.noise, **super().state_tensors(),
        }  # fmt: skip
