"""Whole iterations of PPO and A2C, compared with the mathematics of the papers in float64.

The oracle takes the networks and the rollouts of the learner, and the order of its samples. It computes all else by itself:
moments of observations and returns, advantages, losses, gradients and the steps of Adam.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from torch.distributions import Categorical, Independent, Normal

import gpuvec  # noqa: F401  # registers the environments; imported after torch, which it needs
from gpuvec.learners.a2c import A2CArgs
from gpuvec.learners.config.training_config import OnPolicyArgs
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import make_learner

SMALL: dict[str, Any] = {
    "device": "cpu", "num_envs": 8, "num_steps": 16, "num_iterations": 4, "hidden": (16,), "params": {"max_episode_steps": 10},
    "ent_coef": 0.1, "vf_coef": 0.7, "gamma": 0.95, "gae_lambda": 0.8, "max_grad_norm": 0.2, "learning_rate": 0.02,
}  # fmt: skip
MINIBATCHES: dict[str, Any] = {"update_epochs": 3, "num_minibatches": 2, "clip": 0.02}
CARTPOLE, PENDULUM = "gpuvec/CartPole-v1", "gpuvec/Pendulum-v1"
CASES: dict[str, OnPolicyArgs] = {
    "ppo, discrete": PPOArgs(env=CARTPOLE, clip_value=True, reward_scale=0.3, **SMALL, **MINIBATCHES),
    "ppo, gaussian": PPOArgs(env=PENDULUM, normalize=True, normalize_returns=True, **SMALL, **MINIBATCHES),
    "a2c, discrete": A2CArgs(env=CARTPOLE, normalize=True, anneal_lr=False, **SMALL),
    "a2c, gaussian": A2CArgs(env=PENDULUM, reward_scale=0.1, shared=True, **SMALL),
}


class Oracle:
    """The learner of one policy in float64.

    Args:
        learner: the learner in its first state.
    """

    def __init__(self, learner: Any) -> None:
        self.args = learner.policy.args
        self.network = copy.deepcopy(learner.policy.network).double()
        self.parameters = list(self.network.parameters())
        self.exp_avg, self.exp_avg_sq = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))
        self.num_steps = 0
        self.samples = [learner.policy.buffer.obs[-1].double()]  # of the normaliser
        self.returns: list[Any] = []  # that scale the rewards
        self.running = torch.zeros(self.args.num_envs, dtype=torch.float64)

    def features(self, obs: Any) -> Any:
        """Returns observations as the networks take them."""
        if not self.args.normalize:
            return obs.double()
        samples = torch.cat([x.flatten(0, -2) for x in self.samples])
        return ((obs - samples.mean(0)) / samples.std(0, unbiased=False).clamp(min=0.01)).clamp(-10.0, 10.0)

    def distribution(self, obs: Any) -> Any:
        """Returns the distribution of the actions."""
        outputs = self.network.body.policy(self.features(obs))
        if self.network.discrete:
            return Categorical(logits=outputs)
        return Independent(Normal(outputs, self.network.log_std.exp()), 1)

    def value(self, obs: Any) -> Any:
        """Returns V."""
        return self.network.body.value(self.features(obs))

    def scaled_rewards(self, s: Any) -> Any:
        """Returns the rewards that are learned from."""
        reward = s.reward.double() * self.args.reward_scale
        if not self.args.normalize_returns:
            return reward
        for t in range(len(reward)):
            self.running = self.args.gamma * self.running + reward[t]
            self.returns.append(self.running)
            self.running = self.running.where(~s.ended[t], 0.0)
        return reward / torch.cat(self.returns).std(unbiased=False)

    @torch.no_grad()
    def estimate(self, s: Any) -> tuple[Any, Any]:
        """Returns advantages, and V of the observations, (T, R) each."""
        value, final_value, reward = self.value(s.obs), self.value(s.final_obs), self.scaled_rewards(s)
        gamma, out = self.args.gamma, torch.zeros_like(reward)
        for t in reversed(range(len(reward))):
            after = torch.where(s.terminated[t], 0.0, torch.where(s.ended[t], final_value[t], value[t + 1]))
            later = out[t + 1].where(~s.ended[t], 0.0) if t + 1 < len(reward) else 0.0
            out[t] = reward[t] + gamma * after - value[t] + gamma * self.args.gae_lambda * later
        return out, value[:-1]

    def loss(self, obs: Any, action: Any, old_log_prob: Any, old_value: Any, advantage: Any) -> tuple[Any, list[Any]]:
        """Returns the loss of some samples, and its metrics."""
        args, policy, target = self.args, self.distribution(obs), old_value + advantage
        log_prob, entropy, error = policy.log_prob(action), policy.entropy().mean(), (self.value(obs) - target) ** 2
        if isinstance(args, PPOArgs):
            ratio, advantage = (log_prob - old_log_prob).exp(), (advantage - advantage.mean()) / advantage.std()
            clipped = ratio.clamp(1.0 - args.clip, 1.0 + args.clip)
            policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            if args.clip_value:
                moved = (self.value(obs) - old_value).clamp(-args.clip, args.clip)
                error = torch.maximum(error, (old_value + moved - target) ** 2)
            kl, outside = (ratio - 1.0 - ratio.log()).mean(), (ratio != clipped).double().mean()
            more = [kl, outside]
        else:
            policy_loss, more = -(log_prob * advantage).mean(), []
        value_loss = 0.5 * error.mean()
        return policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy, [policy_loss, value_loss, entropy, *more]

    def step(self, loss: Any, learning_rate: float) -> float:
        """Takes a step of Adam, and returns the norm of the gradient."""
        gradient = torch.autograd.grad(loss, self.parameters)
        norm, self.num_steps = math.sqrt(sum(float(g.square().sum()) for g in gradient)), self.num_steps + 1
        with torch.no_grad():
            for p, m, v, g in zip(self.parameters, self.exp_avg, self.exp_avg_sq, gradient, strict=True):
                clipped = g * min(1.0, self.args.max_grad_norm / norm)
                m.copy_(0.9 * m + 0.1 * clipped)
                v.copy_(0.999 * v + 0.001 * clipped**2)
                first, second = m / (1.0 - 0.9**self.num_steps), v / (1.0 - 0.999**self.num_steps)
                p.sub_(learning_rate * first / (second.sqrt() + 1e-5))
        return norm

    def update(self, s: Any, orders: list[Any], iteration: int) -> tuple[Any, Any]:
        """Learns from a rollout, and returns the means of the metrics, and the explained variance."""
        args, rows = self.args, []
        advantage, value = self.estimate(s)
        fields = [x.flatten(0, 1) for x in (s.obs[:-1], s.action, s.log_prob.double(), value, advantage)]
        learning_rate = args.learning_rate * (1.0 - iteration / args.iterations if args.anneal_lr else 1.0)
        for order in orders:
            for part in order.view(getattr(args, "num_minibatches", 1), -1):
                loss, metrics = self.loss(*(x[part] for x in fields))
                rows.append(torch.stack([x.detach() for x in metrics] + [torch.tensor(self.step(loss, learning_rate))]))
        self.samples.append(s.obs[:-1].double())
        return torch.stack(rows).mean(0), 1.0 - advantage.var() / (value + advantage).var()


@pytest.mark.parametrize("case", CASES)
def test_iterations_are_those_of_float64(case: str) -> None:
    args = CASES[case].resolved("cpu")
    env = gym.make_vec(args.env, args.num_envs or 1, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)
    learner = make_learner(args, env)
    policy, names, orders, ended = learner.policy, learner.policy.update_metrics, list[Any](), set[bool]()
    history = list[dict[str, float]]()
    if isinstance(args, PPOArgs):
        draw_order = policy.sample_order
        policy.sample_order = lambda *numbers: orders.append(draw_order(*numbers)) or orders[-1]
    oracle, first = Oracle(learner), [p.detach().clone() for p in policy.parameters.values()]
    for iteration in range(3):
        orders.clear()
        learner.iterate()
        metrics, s = learner.read(), policy.buffer
        history.append(metrics)
        expected, explained = oracle.update(s, orders or [torch.arange(s.reward.numel())], iteration)
        for name, value in zip(names, expected, strict=True):
            assert metrics[name] == pytest.approx(float(value), rel=1e-3, abs=2e-5), (name, iteration)
        assert metrics["explained_variance"] == pytest.approx(float(explained), rel=1e-3, abs=1e-4)
        for name, p, known in zip(policy.parameters, policy.parameters.values(), oracle.parameters, strict=True):
            torch.testing.assert_close(p.double(), known, rtol=0.0, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
        ended |= {bool(x) for x in s.terminated[s.ended]}
    env.close()
    # The case shows what it is about: each parameter learned, gradients and ratios were clipped, and episodes were truncated.
    assert all((p - before).abs().max() > 1e-3 for p, before in zip(policy.parameters.values(), first, strict=True))
    assert False in ended
    assert max(metrics["grad_norm"] for metrics in history) > 1.2 * args.max_grad_norm
    assert max(metrics.get("clip_fraction", 1.0) for metrics in history) > 0.1
