"""What A2C and PPO share: rollouts under the policy that learns, estimates of how good its actions were, checkpoints.

Each iteration has three parts:

    collect    T steps of E environments under the current policy, straight into storage
    estimate   V of everything seen, generalised advantages, targets of the value function
    improve    the algorithm's own: what is learned from the rollout

Environments of many agents come as `FlattenAgents`, and all agents share the policy: a row is then an agent, and the mask
tells which steps it was in the game for. The others enter no loss and no metric.

Letters: E rows (environments, or all of their agents), T steps, D observation features, K action components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from gpuvec.learners.args.schedule import interpolated
from gpuvec.learners.args.training import OnPolicyArgs
from gpuvec.learners.captured.guard import LEARNED, Guard
from gpuvec.learners.captured.optimizer import adam
from gpuvec.learners.learner import Learner, states_of
from gpuvec.learners.networks.actor_critic import ActorCritic, Body, features_of, outputs_of
from gpuvec.learners.networks.mlp import Separate, Shared, first_weights
from gpuvec.learners.rollouts.advantage import Advantage
from gpuvec.learners.rollouts.episodes import Episodes
from gpuvec.learners.rollouts.masked import var_mean
from gpuvec.learners.rollouts.returns import ReturnScale
from gpuvec.learners.sampling import Drawn, Sampler
from gpuvec.vector.wrappers import FlattenAgents

PLAYED = ("episodes", "return", "length", "last_return", "explained_variance")  # metrics of a rollout


class Storage(NamedTuple):
    """A rollout, and what is estimated from it."""

    obs: Tensor  # (T + 1, E, D); the last row is the next rollout's first
    action: Tensor  # (T, E) or (T, E, K) int64, or (T, E, K) float32, as drawn from the policy
    log_prob: Tensor  # (T, E) of the action under the policy that took it
    reward: Tensor  # (T, E)
    terminated: Tensor  # (T, E) bool
    truncated: Tensor  # (T, E) bool
    final_obs: Tensor  # (T, E, D); where an episode ended, its last observation
    ended: Tensor  # (T, E) bool; where final_obs counts
    value: Tensor  # (T, E) V(obs)
    advantage: Tensor  # (T, E)
    target: Tensor  # (T, E) what V(obs) should have been
    mask: Tensor | None = None  # (T, E) bool: the agent was in the game; None if a row is an environment of one agent


class OnPolicy(Learner):
    """A learner on `env`, a SAME_STEP vector environment of one agent a row with torch output, with `args` (resolved).

    Args:
        args: the settings.
        env: the environment.
        loss: what is minimised: `loss(network, batch, args, entropy_weight)` gives the loss and metrics.
        body: makes the network, see `networks.actor_critic`; by default a perceptron as `args` have it.
    """

    args: OnPolicyArgs
    network: ActorCritic
    learned: tuple[str, ...] = ()  # names of the metrics of `improve`

    def __init__(
        self,
        args: OnPolicyArgs,
        env: gym.vector.VectorEnv[Any, Any, Any],
        loss: Callable[..., tuple[Tensor, Tensor]],
        body: Body | None = None,
    ) -> None:
        self.loss = torch.compile(loss, fullgraph=True, dynamic=False) if args.compile else loss
        self.names = PLAYED + self.learned
        super().__init__(args, env)
        T, E, device = args.num_steps, env.num_envs, args.device
        self.network = self.networks(args, env, body).to(device)
        self.parameters = dict(self.network.named_parameters())
        self.learning_rate = torch.tensor(args.learning_rate, device=device)
        self.entropy_weight = torch.tensor(args.entropy_weight, device=device)
        self.optimizer = adam(self.parameters.values(), self.learning_rate, eps=1e-5)

        obs, _ = env.reset(seed=args.seed)
        if self.network.normalizer is not None:
            self.network.normalizer.update(obs)
        action = self.network.policy(obs).mode()

        def steps(shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32, extra: int = 0) -> Tensor:
            return torch.zeros((T + extra, E, *shape), dtype=dtype, device=device)

        self.storage = s = Storage(
            obs=steps(obs.shape[1:], extra=1), action=steps(action.shape[1:], action.dtype), log_prob=steps(), reward=steps(),
            terminated=steps(dtype=torch.bool), truncated=steps(dtype=torch.bool), final_obs=steps(obs.shape[1:]),
            ended=steps(dtype=torch.bool), value=steps(), advantage=steps(), target=steps(),
            mask=steps(dtype=torch.bool) if isinstance(env, FlattenAgents) else None,
        )  # fmt: skip
        s.obs[T].copy_(obs)
        self.episodes = Episodes.of(E, device)
        self.advantage = Advantage(device, args.gamma, args.gae_lambda)
        self.return_scale = ReturnScale(E, args.gamma, device) if args.normalize_returns else None
        self.sampler = Sampler(device, args.seed)
        self.rounds = torch.zeros((), dtype=torch.int64, device=device)  # iterations, as the sampler reads them
        self.entropy = torch.zeros(E, device=device)  # of the policy in the last step
        rows = {"collect": ("a reward", "the policy's log-probability of an action"), "estimate": ("a value", "an advantage")}
        self.guard = Guard(rows, LEARNED, device)
        self.out = [
            {"obs": s.obs[t + 1], "reward": s.reward[t], "terminated": s.terminated[t], "truncated": s.truncated[t],
             "final_obs": s.final_obs[t], "_final_obs": s.ended[t], **({} if s.mask is None else {"agent_mask": s.mask[t]})}
            for t in range(T)
        ]  # fmt: skip
        self.parts = (self.collect, self.estimate, self.improve)

    @staticmethod
    def networks(args: OnPolicyArgs, env: Any, body: Body | None = None) -> ActorCritic:
        """Those of a policy for `env`, with their first weights."""
        spaces = env.single_observation_space, env.single_action_space

        def perceptron(observations: gym.Space[Any], actions: gym.Space[Any]) -> nn.Module:
            kind = Shared if args.shared else Separate
            return kind(features_of(observations), outputs_of(actions), args.hidden, args.init)

        with first_weights(args.seed):
            return ActorCritic(*spaces, (body or perceptron)(*spaces), args.normalize)

    @torch.no_grad()
    def collect(self) -> None:
        """T steps of each row."""
        s = self.storage
        s.obs[0].copy_(s.obs[-1])
        for t, out in enumerate(self.out):
            drawn = Drawn(s.action[t], s.log_prob[t], self.entropy)
            self.network.policy(s.obs[t]).draw(self.sampler, self.rounds, t, drawn)
            self.env.step(self.network.control(s.action[t]), out=out)
        self.rounds.add_(1)
        self.guard.look_at_rows("collect", s.reward, s.log_prob)

    @torch.no_grad()
    def estimate(self) -> None:
        """Advantages and targets, from V of each step's true successor: a truncated episode's final observation counts."""
        s = self.storage
        value, last_value = (self.network.value(obs).contiguous() for obs in (s.obs, s.final_obs))
        s.value.copy_(value[:-1])
        over = s.ended if s.mask is None else s.ended | s.terminated  # who leaves is done, while its env goes on
        reward = s.reward * self.args.reward_scale
        if self.return_scale is not None:
            reward = self.return_scale(reward, over, s.mask)
        self.advantage(reward, value, last_value, s.terminated, s.ended, (s.advantage, s.target))
        self.guard.look_at_rows("estimate", s.value, s.advantage)
        last = over if s.mask is None else over & s.mask
        episodes, returns, lengths = self.episodes.add(s.reward, last, s.mask)
        unexplained = var_mean(s.advantage, s.mask)[0] / var_mean(s.target, s.mask)[0]  # target - value is the advantage
        means = [episodes, returns / episodes, lengths / episodes, self.episodes.last_return.mean(), 1.0 - unexplained]
        self.metrics[: len(PLAYED)] = torch.stack(means)

    def improve(self) -> None:
        """Learns from the rollout, and writes the metrics in `learned`."""
        raise NotImplementedError

    @torch.no_grad()
    def look_back(self) -> None:
        """At the end of `improve`: whether all that was learned is finite."""
        self.guard.look_at_learned(self.metrics[-len(self.learned) :], self.parameters.values())

    def update(self, loss: Tensor) -> Tensor:
        """One step of Adam against the gradient of `loss`, whose norm, before it is clipped, is returned."""
        gradient = torch.autograd.grad(loss, list(self.parameters.values()))
        for p, g in zip(self.parameters.values(), gradient, strict=True):
            p.grad = g
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.args.max_grad_norm)
        self.optimizer.step()
        return norm

    def iterate(self) -> None:
        """One iteration; waits for nothing."""
        a, steps = self.args, self.iteration * self.args.batch_size
        if a.learning_rate_table:
            self.learning_rate.fill_(interpolated(a.learning_rate_table, steps))
        elif a.anneal:
            self.learning_rate.fill_(a.learning_rate * (1.0 - self.iteration / a.iterations))
        if a.entropy_table:
            self.entropy_weight.fill_(interpolated(a.entropy_table, steps))
        super().iterate()

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        optimizer = states_of(self.optimizer, self.parameters)
        episodes = self.episodes._asdict()
        return {
            "network": self.network.state_dict(), "optimizer": optimizer, "episodes": episodes, "obs": self.storage.obs[-1],
            "rounds": self.rounds, "return_scale": {} if self.return_scale is None else self.return_scale.tensors(),
        }  # fmt: skip
