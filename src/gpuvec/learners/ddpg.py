"""Deep deterministic policy gradient.

Lillicrap, Hunt, Pritzel, Heess, Erez, Tassa, Silver and Wierstra, 2016, arXiv:1509.02971. With `critics=2`,
`policy_delay=2` and `target_sigma=0.2` it is TD3 (Fujimoto, van Hoof and Meger, 2018, arXiv:1802.09477).

After a rollout under the policy and noise come two parts::

    remember   the transitions, with up to n rewards each, in a ring on the device
    improve    minibatches of the ring: the critics towards their targets, the policy uphill, the targets after them

Letters: R rows, T steps, D observation features, K action components, C critics.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.memory_check import FLOAT32_BYTES, require_memory
from gpuvec.learners.buffers.replay_buffer import ReplayBuffer, Transitions, n_step_returns
from gpuvec.learners.config.ddpg_config import DDPGArgs
from gpuvec.learners.cuda_graphs.guard import LEARNED, Guard
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.estimators.masked_moments import masked_mean
from gpuvec.learners.networks.actor_critic import Body, features_of
from gpuvec.learners.networks.deterministic import DeterministicActorCritic, bounded, of_bodies, perceptrons
from gpuvec.learners.networks.mlp import first_weights
from gpuvec.learners.policy import Policy, PolicyContext, optimizer_state
from gpuvec.learners.seeds import WEIGHTS, stream_seed
from gpuvec.learners.training import Result, train

__all__ = ["DDPG", "DDPGArgs", "Result", "train"]


class DDPG(Policy):
    """The policy of `context` with the settings `args` (resolved).

    `body` makes the networks, see `networks.deterministic`; by default they are perceptrons as `args` have it.
    """

    args: DDPGArgs
    network: DeterministicActorCritic
    names = ("episodes", "return", "length", "last_return", "critic_loss", "value", "critic_norm", "actor_loss", "actor_norm")

    def __init__(self, args: DDPGArgs, context: PolicyContext, body: Body | None = None) -> None:
        super().__init__(args, context)
        device, rows = args.device, context.rows
        T, R = rows.reward.shape
        self.network = self.networks(args, context.observation_space, context.action_space, body, context.role).to(device)
        self.actor, self.critics = (dict(part.named_parameters()) for part in (self.network.actor, self.network.critics))
        self.target_actor, self.target_critics = copy.deepcopy((self.network.actor, self.network.critics))
        rates = (torch.tensor(rate, device=device) for rate in (args.actor_learning_rate, args.critic_learning_rate))
        self.actor_optimizer, self.critic_optimizer = (
            Adam(parameters.values(), rate, eps=1e-8)
            for parameters, rate in zip((self.actor, self.critics), rates, strict=True)
        )
        features, components = rows.obs.shape[2], len(self.network.reach)
        self.action = torch.zeros(T, R, components, device=device)
        columns = max(args.buffer_size // R, T)  # of each row
        transition = (2 * features + components + 2) * FLOAT32_BYTES + (rows.mask is not None)
        require_memory(device, columns * R * transition, f"a ring of {columns * R:,} transitions")
        self.replay = ReplayBuffer.of(columns, R, features, components, device, rows.mask is not None)
        self.episodes = EpisodeStatistics.of(R, device)
        self.guard = Guard({"collect": ("a reward", "an action")}, LEARNED, device)
        self.noise = torch.zeros(R, components, device=device)
        self.ends = torch.tensor([[-1.0], [1.0]], device=device).repeat(1, components)  # of actions as the networks give them
        # Which updates move the policy is the same again after so many iterations.
        variants = args.policy_delay // math.gcd(args.policy_delay, args.gradient_steps)
        self.improves = tuple(partial(self.improve, k) for k in range(variants))
        self.parts = (self.remember, *self.improves)

    @staticmethod
    def networks(
        args: DDPGArgs, observation_space: Any, action_space: Any, body: Body | None = None, role: str = ALL
    ) -> DeterministicActorCritic:
        """Those of a role's policy for these spaces of an agent, with their first weights."""
        spaces = observation_space, action_space
        features, components = features_of(observation_space), bounded(action_space).shape[0]
        with first_weights(stream_seed(args.seed, WEIGHTS, role)):
            if body is None:
                actor, critics = perceptrons(features, components, args.hidden, args.critics)
            else:
                actor, critics = of_bodies([body(*spaces) for _ in range(args.critics)])
        return DeterministicActorCritic(*spaces, actor, critics, args.normalize)

    def begin(self) -> None:
        """The first observations are the first that are known of any."""
        if self.network.normalizer is not None:
            self.network.normalizer.update(self.rows.obs[-1])

    def act(self, t: int, began: Tensor) -> Tensor:
        """What the policy does, and noise; where an episode begins, the noise does too."""
        net, a = self.network, self.args
        low, high = self.ends
        chosen = net.act(net.actor, net.seen(self.rows.obs[t]))
        fresh = began.unsqueeze(1).expand(-1, self.each).reshape(-1)
        drawn = self.sampler.noisy(chosen, self.noise, fresh, low, high, self.rounds, t, sigma=a.sigma, theta=a.theta)
        return net.outward(drawn, out=self.action[t])

    def check_rollout_finite(self) -> None:
        """Whether it is finite."""
        super().check_rollout_finite()
        self.guard.check_rows_finite("collect", self.rows.reward, self.action)

    @torch.no_grad()
    def remember(self) -> None:
        """The rollout's transitions."""
        r, a = self.rows, self.args
        gained = n_step_returns(r.obs, r.reward * a.reward_scale, r.terminated, r.ended, r.final_obs, a.gamma, a.n_step)
        self.replay.add(Transitions(r.obs[:-1], self.action, *gained, r.mask))
        last = r.over if r.mask is None else r.over & r.mask
        episodes, returns, lengths = self.episodes.add(r.reward, last, r.mask)
        self.metrics[:4] = torch.stack([episodes, returns / episodes, lengths / episodes, self.episodes.last_return.mean()])
        if self.network.normalizer is not None:
            self.network.normalizer.update(r.obs[:-1], r.mask)

    def improve(self, variant: int) -> None:
        """Some updates; `variant` tells which of them move the policy."""
        a, of_critics, of_actor = self.args, self.metrics[4:7], self.metrics[7:]
        self.metrics[4:].zero_()
        moves = 0
        for k in range(a.gradient_steps):
            seen = self.replay.sample(a.batch_size, self.generator)
            of_critics += self.update_critics(seen) / a.gradient_steps
            if (variant * a.gradient_steps + k + 1) % a.policy_delay == 0:
                of_actor += self.update_actor(seen)
                moves += 1
                self.follow()
        of_actor /= max(moves, 1)
        with torch.no_grad():
            self.guard.check_update_finite(self.metrics[4:], (*self.actor.values(), *self.critics.values()))

    def update_critics(self, batch: Transitions) -> Tensor:
        """One step towards the targets; (3,): loss, mean value, norm of the gradient."""
        net = self.network
        with torch.no_grad():
            obs, after = net.seen(batch.obs), net.seen(batch.next_obs)
            within = net.act(self.target_actor, after)
            if self.args.target_sigma > 0.0:
                noise = torch.empty_like(within).normal_(0.0, self.args.target_sigma, generator=self.generator)
                noise = noise.clamp_(-2.5 * self.args.target_sigma, 2.5 * self.args.target_sigma)
                within = (within + noise).clamp_(-1.0, 1.0)
            target = batch.reward + batch.discount * net.values(self.target_critics, after, within).amin(0)
        value = net.values(net.critics, obs, net.inward(batch.action))
        loss = torch.stack([masked_mean(error, batch.mask) for error in (value - target).square()]).sum()
        norm = step(self.critic_optimizer, self.critics, loss)
        return torch.stack([loss.detach(), torch.stack([masked_mean(v, batch.mask) for v in value.detach()]).mean(), norm])

    def update_actor(self, batch: Transitions) -> Tensor:
        """One step of the policy alone, up the first critic; (2,): loss, norm of the gradient."""
        net = self.network
        obs = net.seen(batch.obs)
        loss = -masked_mean(net.values(net.critics[:1], obs, net.act(net.actor, obs))[0], batch.mask)
        norm = step(self.actor_optimizer, self.actor, loss)
        return torch.stack([loss.detach(), norm])

    @torch.no_grad()
    def follow(self) -> None:
        """The targets go a part of the way to the networks."""
        own: list[Tensor] = [*self.actor.values(), *self.critics.values()]
        targets: list[Tensor] = [*self.target_actor.parameters(), *self.target_critics.parameters()]
        torch._foreach_lerp_(targets, own, self.args.tau)

    def prepare(self, iteration: int) -> tuple[Callable[[], None], ...]:
        """Nothing is learned before the start."""
        begun = (iteration + 1) * self.args.steps_per_iteration >= self.args.learning_starts
        return (self.remember, self.improves[iteration % len(self.improves)]) if begun else (self.remember,)

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        held = {name: ring for name, ring in self.replay.held._asdict().items() if ring is not None}
        return {
            "network": self.network.state_dict(),
            "target_actor": self.target_actor.state_dict(), "target_critics": self.target_critics.state_dict(),
            "actor_optimizer": optimizer_state(self.actor_optimizer, self.actor),
            "critic_optimizer": optimizer_state(self.critic_optimizer, self.critics),
            "replay": {**held, "position": self.replay.position, "filled": self.replay.filled},
            "episodes": self.episodes._asdict(), "noise": self.noise, **super().tensors(),
        }  # fmt: skip


def step(optimizer: Adam, parameters: Mapping[str, Tensor], loss: Tensor) -> Tensor:
    """One step of these parameters alone; the norm of the gradient."""
    gradient = torch.autograd.grad(loss, list(parameters.values()))
    for p, g in zip(parameters.values(), gradient, strict=True):
        p.grad = g
    optimizer.step()
    return torch.nn.utils.get_total_norm(gradient)
