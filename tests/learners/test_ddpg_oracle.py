"""The whole loop of DDPG and TD3 against an implementation in float64 that shares no code with the learner.

The oracle starts from the learner's initial weights, has an environment of its own with the same seed, and takes the same
random draws: those of the actions by their keys, and those of the batches from a generator with the same seed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

import gpuvec  # noqa: F401  # registers the environments; imported after torch, which it needs
from gpuvec.learners.ddpg import DDPGArgs
from gpuvec.learners.training import make_learner
from gpuvec.random import Key, normal, uniform

FIRST_DRAW = 2**31  # the number of the first draw of a policy
COMMON: dict[str, Any] = {
    "device": "cpu", "num_envs": 4, "num_steps": 4, "hidden": (16,), "buffer_size": 96, "batch_size": 16, "gradient_steps": 3,
    "learning_starts": 30, "sigma": 0.5, "theta": 0.15, "normalize": True, "tau": 0.2, "seed": 5,
}  # fmt: skip
# Actions of Pendulum range from -2 to 2, and its episodes are truncated. Those of a car that starts just below its goal also
# terminate. A ring of 24 steps is overwritten from the seventh iteration on.
PENDULUM = {**COMMON, "env": "gpuvec/Pendulum-v1", "params": {"max_episode_steps": 10}, "reward_scale": 0.1}
CAR = {
    **COMMON, "env": "gpuvec/MountainCarContinuous-v0", "params": {"low": 0.4485, "high": 0.4499, "max_episode_steps": 7},
    "critics": 2, "policy_delay": 2, "target_sigma": 0.2, "n_step": 3, "reward_scale": 0.05, "seed": 1,
}  # fmt: skip
ITERATIONS = 9


class Network(NamedTuple):
    """Layers of a perceptron with rectified linear units, (weight, bias) each, float64."""

    layers: list[tuple[Tensor, Tensor]]

    @classmethod
    def copy_of(cls, module: Any) -> Network:
        numbers = [p.detach().double().clone().requires_grad_() for p in module.parameters()]
        return cls(list(zip(numbers[::2], numbers[1::2], strict=True)))

    @property
    def parameters(self) -> list[Tensor]:
        return [p for layer in self.layers for p in layer]

    def __call__(self, x: Tensor) -> Tensor:
        for k, (weight, bias) in enumerate(self.layers):
            x = x @ weight.T + bias
            x = x.clamp(min=0.0) if k < len(self.layers) - 1 else x
        return x


class AdamOracle:
    """Adam with the step sizes of the paper's algorithm 1."""

    def __init__(self, parameters: list[Tensor], rate: float) -> None:
        self.parameters, self.rate, self.count = parameters, rate, 0
        self.first, self.second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))

    def step(self, loss: Tensor) -> None:
        self.count += 1
        for p, m, v, g in zip(
            self.parameters, self.first, self.second, torch.autograd.grad(loss, self.parameters), strict=True
        ):
            m.copy_(0.9 * m + 0.1 * g)
            v.copy_(0.999 * v + 0.001 * g * g)
            m_hat, v_hat = m / (1.0 - 0.9**self.count), v / (1.0 - 0.999**self.count)
            p.data -= self.rate * m_hat / (v_hat.sqrt() + 1e-8)


class Oracle:
    """The training of `args` from the initial networks and seeds of `policy`."""

    def __init__(self, args: DDPGArgs, policy: Any) -> None:
        self.args, self.action_seed = args, policy.action_seed
        self.generator = torch.Generator().manual_seed(policy.minibatch_seed)
        self.env = gym.make_vec(args.env, args.num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)
        space = self.env.single_action_space
        low, high = torch.tensor(space.low).double(), torch.tensor(space.high).double()
        self.centre, self.half = (low + high) / 2, (high - low) / 2
        self.actor, self.target_actor = Network.copy_of(policy.network.actor), Network.copy_of(policy.network.actor)
        critics = policy.network.critics
        self.critics, self.target_critics = ([Network.copy_of(c) for c in critics] for _ in range(2))
        self.actor_adam = AdamOracle(self.actor.parameters, args.actor_learning_rate)
        self.critic_adam = AdamOracle([p for c in self.critics for p in c.parameters], args.critic_learning_rate)
        self.obs = self.env.reset(seed=args.seed)[0].clone()
        self.samples = list(self.obs.double())  # of the normaliser
        self.noise = torch.zeros(args.num_envs, len(low), dtype=torch.float64)
        self.starts = torch.ones(args.num_envs, dtype=torch.bool)
        self.ring: dict[tuple[int, int], tuple[Any, ...]] = {}  # {(step of the ring, row): transition}
        self.ring_steps, self.added_steps, self.updates = args.buffer_size // args.num_envs, 0, 0
        self.terminations = self.truncations = 0

    def normalize(self, obs: Tensor) -> Tensor:
        seen = torch.stack(self.samples)
        std = (seen - seen.mean(0)).square().mean(0).sqrt().clamp(min=1e-2)
        return ((obs.double() - seen.mean(0)) / std).clamp(-10.0, 10.0)

    def draw(self, function: Any, iteration: int, t: int, *bounds: float) -> Tensor:
        seed, shape = self.action_seed, self.noise.shape
        keys = (Key(seed & 0xFFFFFFFF, seed >> 32, row, iteration, t) for row in range(shape[0]))
        values = [[float(function(key, FIRST_DRAW + 2 * k, *bounds)) for k in range(shape[1])] for key in keys]
        return torch.tensor(values, dtype=torch.float64)

    def choose(self, iteration: int, t: int) -> Tensor:
        """Returns scaled actions: at random before `learning_starts` steps, then with noise that begins with each episode."""
        args = self.args
        if iteration * args.num_envs * args.num_steps < args.learning_starts:
            self.noise.zero_()
            return self.draw(uniform, iteration, t, -1.0, 1.0)
        self.noise[self.starts] = 0.0
        self.noise += args.sigma * self.draw(normal, iteration, t) - args.theta * self.noise
        return (self.actor(self.normalize(self.obs)).tanh().detach() + self.noise).clamp(-1.0, 1.0)

    def iterate(self, iteration: int) -> None:
        args, steps = self.args, []
        for t in range(args.num_steps):
            action = self.centre + self.half * self.choose(iteration, t)
            obs, reward, terminated, truncated, info = self.env.step(action.float())
            ended = terminated | truncated
            after = torch.where(ended[:, None], info["final_obs"], obs) if ended.any() else obs
            steps.append((self.obs, action, args.reward_scale * reward.double(), terminated.clone(), ended, after.clone()))
            self.obs, self.starts = obs.clone(), ended
            self.terminations += int(terminated.sum())
            self.truncations += int((ended & ~terminated).sum())
        self.store(steps)
        self.samples += [obs.double() for step in steps for obs in step[0]]
        if (iteration + 1) * args.num_envs * args.num_steps >= args.learning_starts:
            for k in range(args.gradient_steps):
                self.update((iteration * args.gradient_steps + k + 1) % args.policy_delay == 0)

    def store(self, steps: list[tuple[Any, ...]]) -> None:
        args = self.args
        for t in range(len(steps)):
            for row in range(args.num_envs):
                total, u = 0.0, t
                for k in range(args.n_step):
                    total += args.gamma**k * float(steps[u][2][row])
                    if steps[u][4][row] or u == len(steps) - 1 or k == args.n_step - 1:
                        break
                    u += 1
                discount = 0.0 if steps[u][3][row] else args.gamma ** (u - t + 1)
                place = (self.added_steps + t) % self.ring_steps, row
                self.ring[place] = steps[t][0][row], steps[t][1][row], total, discount, steps[u][5][row]
        self.added_steps += len(steps)

    def sample(self) -> tuple[Tensor, ...]:
        args, size = self.args, min(self.added_steps, self.ring_steps)
        numbers = torch.rand(args.batch_size, dtype=torch.float64, generator=self.generator).tolist()
        places = [divmod(math.floor(number * size * args.num_envs), args.num_envs) for number in numbers]
        columns = zip(*(self.ring[place] for place in places), strict=True)
        return tuple(torch.stack([torch.as_tensor(x).double() for x in column]) for column in columns)

    def value(self, critic: Network, obs: Tensor, scaled_action: Tensor) -> Tensor:
        return critic(torch.cat([obs, scaled_action], 1))[:, 0]

    def update(self, updates_actor: bool) -> None:
        args = self.args
        obs, action, reward, discount, next_obs = self.sample()
        obs, next_obs, scaled = self.normalize(obs), self.normalize(next_obs), (action - self.centre) / self.half
        next_action = self.target_actor(next_obs).tanh()
        if args.target_sigma:
            noise = torch.empty(next_action.shape).normal_(0.0, args.target_sigma, generator=self.generator).double()
            next_action = (next_action + noise.clamp(-2.5 * args.target_sigma, 2.5 * args.target_sigma)).clamp(-1.0, 1.0)
        next_value = torch.stack([self.value(critic, next_obs, next_action) for critic in self.target_critics]).min(0).values
        target = (reward + discount * next_value).detach()
        self.critic_adam.step(sum((self.value(critic, obs, scaled) - target).square().mean() for critic in self.critics))
        self.updates += 1
        if updates_actor:
            self.actor_adam.step(-self.value(self.critics[0], obs, self.actor(obs).tanh()).mean())
            targets, networks = [self.target_actor, *self.target_critics], [self.actor, *self.critics]
            for target_network, network in zip(targets, networks, strict=True):
                for p, q in zip(target_network.parameters, network.parameters, strict=True):
                    p.data = (1.0 - args.tau) * p.data + args.tau * q.data


@pytest.mark.parametrize("settings", [PENDULUM, CAR], ids=["pendulum-ddpg", "car-td3"])
def test_several_iterations_equal_those_of_the_oracle(settings: dict[str, Any]) -> None:
    args = DDPGArgs(**settings).resolved("cpu")
    env = gym.make_vec(args.env, args.num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)
    learner = make_learner(args, env)
    policy = learner.policy
    oracle, initial = Oracle(args, policy), [p.detach().clone() for p in policy.network.parameters()]
    for iteration in range(ITERATIONS):
        learner.iterate()
        oracle.iterate(iteration)
        # Each iteration is compared, so that a difference is found where it begins.
        if iteration + 1 < -(-args.learning_starts // args.steps_per_iteration):
            assert all(torch.equal(p, q) for p, q in zip(policy.network.parameters(), initial, strict=True))
        torch.testing.assert_close(policy.noise.double(), oracle.noise, rtol=0.0, atol=1e-4)
        for place, transition in oracle.ring.items():
            for x, y in zip(policy.replay.transitions[:5], transition, strict=True):
                torch.testing.assert_close(x[place].double(), torch.as_tensor(y).double(), rtol=1e-4, atol=1e-4)
        seen = torch.stack(oracle.samples)
        torch.testing.assert_close(policy.network.normalizer.mean, seen.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(policy.network.normalizer.var, seen.var(0, correction=0), rtol=1e-4, atol=1e-5)
        for networks, modules in (
            ([oracle.actor, *oracle.critics], [policy.network.actor, *policy.network.critics]),
            ([oracle.target_actor, *oracle.target_critics], [policy.target_actor, *policy.target_critics]),
        ):
            for network, module in zip(networks, modules, strict=True):
                for p, q in zip(module.parameters(), network.parameters, strict=True):
                    torch.testing.assert_close(p.detach().double(), q.detach(), rtol=0.0, atol=2e-5)
    assert oracle.updates == (ITERATIONS - 1) * args.gradient_steps
    assert oracle.truncations > 4
    assert oracle.terminations > 4 or settings is PENDULUM
    moved = [float((p.detach() - q).abs().max()) for p, q in zip(policy.network.parameters(), initial, strict=True)]
    assert min(moved) > 1e-3  # each parameter by far more than the tolerance
