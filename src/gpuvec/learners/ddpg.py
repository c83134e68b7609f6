"""Deep deterministic policy gradient.

Lillicrap, Hunt, Pritzel, Heess, Erez, Tassa, Silver and Wierstra, 2016, arXiv:1509.02971. With `critics=2`,
`policy_delay=2` and `target_sigma=0.2` it is TD3 (Fujimoto, van Hoof and Meger, 2018, arXiv:1802.09477).

Each iteration has three parts:

    collect    T steps of E environments under the policy and noise
    remember   the transitions, with up to n rewards each, in a ring on the device
    improve    minibatches of the ring: the critics towards their targets, the policy uphill, the targets after them

Letters: E rows (environments, or all of their agents), T steps, D observation features, K action components, C critics.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuvec.learners.args.ddpg import Args
from gpuvec.learners.captured.guard import LEARNED, Guard
from gpuvec.learners.captured.optimizer import adam
from gpuvec.learners.learner import Learner, states_of
from gpuvec.learners.networks.deterministic import DeterministicActorCritic
from gpuvec.learners.networks.mlp import first_weights
from gpuvec.learners.rollouts.episodes import Episodes
from gpuvec.learners.rollouts.masked import mean
from gpuvec.learners.rollouts.replay import Replay, Transitions, n_step
from gpuvec.learners.sampling import Sampler
from gpuvec.learners.training import Result, train
from gpuvec.vector.wrappers import FlattenAgents

__all__ = ["DDPG", "Args", "Result", "train"]


class Rollout(NamedTuple):
    """T steps."""

    obs: Tensor  # (T + 1, E, D); the last row is the next rollout's first
    action: Tensor  # (T, E, K)
    reward: Tensor  # (T, E)
    terminated: Tensor  # (T, E) bool
    truncated: Tensor  # (T, E) bool
    final_obs: Tensor  # (T, E, D)
    ended: Tensor  # (T + 1, E) bool: the first row is the last of the rollout before
    mask: Tensor | None = None  # (T, E) bool: the agent was in the game; None if a row is an environment of one agent


class DDPG(Learner):
    """The learner of `args` (resolved) on `env`, a SAME_STEP vector environment of one agent a row with torch output."""

    args: Args
    network: DeterministicActorCritic
    names = ("episodes", "return", "length", "last_return", "critic_loss", "value", "critic_norm", "actor_loss", "actor_norm")

    def __init__(self, args: Args, env: Any) -> None:
        super().__init__(args, env)
        T, E, device = args.num_steps, env.num_envs, args.device
        self.network = self.networks(args, env).to(device)
        self.actor, self.critics = (dict(part.named_parameters()) for part in (self.network.actor, self.network.critics))
        self.target_actor, self.target_critics = copy.deepcopy((self.network.actor, self.network.critics))
        rates = (torch.tensor(rate, device=device) for rate in (args.actor_learning_rate, args.critic_learning_rate))
        self.actor_optimizer, self.critic_optimizer = (
            adam(parameters.values(), rate, eps=1e-8)
            for parameters, rate in zip((self.actor, self.critics), rates, strict=True)
        )
        obs, _ = env.reset(seed=args.seed)
        features, components = obs.shape[1], len(self.network.reach)

        def steps(*shape: int, dtype: torch.dtype = torch.float32, extra: int = 0) -> Tensor:
            return torch.zeros((T + extra, E, *shape), dtype=dtype, device=device)

        self.rollout = r = Rollout(
            obs=steps(features, extra=1), action=steps(components), reward=steps(), terminated=steps(dtype=torch.bool),
            truncated=steps(dtype=torch.bool), final_obs=steps(features), ended=steps(dtype=torch.bool, extra=1),
            mask=steps(dtype=torch.bool) if isinstance(env, FlattenAgents) else None,
        )  # fmt: skip
        r.obs[T].copy_(obs)
        r.ended[T].fill_(True)
        if self.network.normalizer is not None:
            self.network.normalizer.update(obs)
        self.replay = Replay.of(max(args.capacity // E, T), E, features, components, device, r.mask is not None)
        self.episodes = Episodes.of(E, device)
        self.guard = Guard({"collect": ("a reward", "an action")}, LEARNED, device)
        self.sampler = Sampler(device, args.seed)
        self.noise = torch.zeros(E, components, device=device)
        self.rounds = torch.zeros((), dtype=torch.int64, device=device)  # iterations, as the sampler reads them
        self.out = [
            {"obs": r.obs[t + 1], "reward": r.reward[t], "terminated": r.terminated[t], "truncated": r.truncated[t],
             "final_obs": r.final_obs[t], "_final_obs": r.ended[t + 1], **({} if r.mask is None else {"agent_mask": r.mask[t]})}
            for t in range(T)
        ]  # fmt: skip
        # Which updates move the policy is the same again after so many iterations.
        variants = args.policy_delay // math.gcd(args.policy_delay, args.updates)
        self.parts = (self.collect, self.remember, *(partial(self.improve, k) for k in range(variants)))

    @staticmethod
    def networks(args: Args, env: Any) -> DeterministicActorCritic:
        """Those of a policy for `env`, with their first weights."""
        spaces = env.single_observation_space, env.single_action_space
        with first_weights(args.seed):
            return DeterministicActorCritic(*spaces, args.hidden, args.critics, args.normalize)

    @torch.no_grad()
    def collect(self) -> None:
        """T steps of each environment."""
        r, net, a = self.rollout, self.network, self.args
        r.obs[0].copy_(r.obs[-1])
        r.ended[0].copy_(r.ended[-1])
        one = torch.ones_like(net.reach)
        for t, out in enumerate(self.out):
            chosen = (net.policy(r.obs[t]).action - net.centre) / net.reach
            drawn = self.sampler.noisy(chosen, self.noise, r.ended[t], -one, one, self.rounds, t, sigma=a.sigma, theta=a.theta)
            r.action[t].copy_(net.centre + net.reach * drawn)
            self.env.step(r.action[t], out=out)
        self.rounds.add_(1)
        self.guard.look_at_rows("collect", r.reward, r.action)

    @torch.no_grad()
    def remember(self) -> None:
        """The rollout's transitions."""
        r, a = self.rollout, self.args
        ended = r.ended[1:]
        gained = n_step(r.obs, r.reward * a.reward_scale, r.terminated, ended, r.final_obs, a.gamma, a.n_step)
        self.replay.add(Transitions(r.obs[:-1], r.action, *gained, r.mask))
        last = ended if r.mask is None else (ended | r.terminated) & r.mask
        episodes, returns, lengths = self.episodes.add(r.reward, last, r.mask)
        self.metrics[:4] = torch.stack([episodes, returns / episodes, lengths / episodes, self.episodes.last_return.mean()])
        if self.network.normalizer is not None:
            self.network.normalizer.update(r.obs[:-1], r.mask)

    def improve(self, variant: int) -> None:
        """Some updates; `variant` tells which of them move the policy."""
        a, of_critics, of_actor = self.args, self.metrics[4:7], self.metrics[7:]
        self.metrics[4:].zero_()
        moves = 0
        for k in range(a.updates):
            seen = self.replay.sample(a.minibatch, self.generator)
            of_critics += self.update_critics(seen) / a.updates
            if (variant * a.updates + k + 1) % a.policy_delay == 0:
                of_actor += self.update_actor(seen)
                moves += 1
                self.follow()
        of_actor /= max(moves, 1)
        with torch.no_grad():
            self.guard.look_at_learned(self.metrics[4:], (*self.actor.values(), *self.critics.values()))

    def update_critics(self, batch: Transitions) -> Tensor:
        """One step towards the targets; (3,): loss, mean value, norm of the gradient."""
        net = self.network
        with torch.no_grad():
            obs, after = net.seen(batch.obs), net.seen(batch.next_obs)
            action = net.act(self.target_actor, after)
            if self.args.target_sigma > 0.0:
                noise = torch.empty_like(action).normal_(0.0, self.args.target_sigma, generator=self.generator)
                noise = noise.clamp_(-2.5 * self.args.target_sigma, 2.5 * self.args.target_sigma)
                inside = ((action - net.centre) / net.reach + noise).clamp_(-1.0, 1.0)
                action = net.centre + net.reach * inside
            target = batch.reward + batch.discount * net.values(self.target_critics, after, action).amin(0)
        value = net.values(net.critics, obs, batch.action)
        loss = torch.stack([mean(error, batch.mask) for error in (value - target).square()]).sum()
        norm = step(self.critic_optimizer, self.critics, loss)
        return torch.stack([loss.detach(), torch.stack([mean(v, batch.mask) for v in value.detach()]).mean(), norm])

    def update_actor(self, batch: Transitions) -> Tensor:
        """One step of the policy alone, up the first critic; (2,): loss, norm of the gradient."""
        net = self.network
        obs = net.seen(batch.obs)
        loss = -mean(net.values(net.critics[:1], obs, net.act(net.actor, obs))[0], batch.mask)
        norm = step(self.actor_optimizer, self.actor, loss)
        return torch.stack([loss.detach(), norm])

    @torch.no_grad()
    def follow(self) -> None:
        """The targets go a part of the way to the networks."""
        own: list[Tensor] = [*self.actor.values(), *self.critics.values()]
        targets: list[Tensor] = [*self.target_actor.parameters(), *self.target_critics.parameters()]
        torch._foreach_lerp_(targets, own, self.args.tau)

    def iterate(self) -> None:
        """One iteration; waits for nothing."""
        collect, remember, *improves = self.parts
        collect()
        remember()
        if (self.iteration + 1) * self.args.batch_size >= self.args.learning_starts:
            improves[self.iteration % len(improves)]()
        self.iteration += 1

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        held = {name: ring for name, ring in self.replay.held._asdict().items() if ring is not None}
        return {
            "network": self.network.state_dict(),
            "target_actor": self.target_actor.state_dict(), "target_critics": self.target_critics.state_dict(),
            "actor_optimizer": states_of(self.actor_optimizer, self.actor),
            "critic_optimizer": states_of(self.critic_optimizer, self.critics),
            "replay": {**held, "position": self.replay.position, "filled": self.replay.filled},
            "episodes": self.episodes._asdict(), "obs": self.rollout.obs[-1], "ended": self.rollout.ended[-1],
            "noise": self.noise, "rounds": self.rounds,
        }  # fmt: skip


def step(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], loss: Tensor) -> Tensor:
    """One step of these parameters alone; the norm of the gradient."""
    gradient = torch.autograd.grad(loss, list(parameters.values()))
    for p, g in zip(parameters.values(), gradient, strict=True):
        p.grad = g
    optimizer.step()
    return torch.nn.utils.get_total_norm(gradient)
