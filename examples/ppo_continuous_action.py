"""PPO for continuous actions in one file, in the manner of CleanRL: `gymnasium.make_vec` and torch.

    python examples/ppo_continuous_action.py --env-id gpuvec/Pendulum-v1 --num-envs 4096 --device cuda

As `ppo.py`, with a Gaussian policy: its mean comes from a network, its standard deviation is the same everywhere. Actions are
clipped to their bounds only on their way to the environment. Letters: E environments, T steps, D features, K action components.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import gymnasium
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Normal

import gpuvec  # noqa: F401  # registers the environments


@dataclass
class Args:
    """Settings."""

    env_id: str = "gpuvec/Pendulum-v1"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    total_steps: int = 1_500_000
    """Environment steps in all."""
    num_envs: int = 128
    num_steps: int = 64
    """Steps of each environment per iteration."""
    update_epochs: int = 8
    num_minibatches: int = 4
    learning_rate: float = 2e-3
    """Falls to 0 in the course of the training."""
    gamma: float = 0.9
    gae_lambda: float = 0.95
    clip: float = 0.2
    reward_scale: float = 0.1
    """What rewards are multiplied with before anything is learnt from them."""
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of tanh units, with orthogonal weights; `gain` is that of the last layer's."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    """A policy and a value function."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        features, actions = envs.single_observation_space.shape[0], envs.single_action_space.shape[0]
        self.actor, self.log_std = mlp(features, actions, 0.01), nn.Parameter(torch.zeros(actions))
        self.critic = mlp(features, 1, 1.0)

    def policy(self, obs: Tensor) -> Normal:
        """The distribution of each component of the action."""
        mean = self.actor(obs)
        return Normal(mean, self.log_std.exp().expand_as(mean), validate_args=False)

    def value(self, obs: Tensor) -> Tensor:
        """V(obs)."""
        return self.critic(obs).squeeze(-1)


def main(args: Args) -> float:
    """Trains; returns the mean return of each environment's last episode."""
    torch.manual_seed(args.seed)
    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep")
    low, high = (
        torch.as_tensor(bound, device=envs.device) for bound in (envs.single_action_space.low, envs.single_action_space.high)
    )
    agent = Agent(envs).to(envs.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shape = (args.num_steps, args.num_envs)
    rollout = {k: torch.zeros(shape, device=envs.device) for k in ("log_prob", "reward", "value", "next_value", "advantage")}
    for name, space in (("obs", envs.single_observation_space), ("action", envs.single_action_space)):
        rollout[name] = torch.zeros((*shape, *space.shape), device=envs.device)
    flags = {k: torch.zeros(shape, dtype=torch.bool, device=envs.device) for k in ("terminated", "ended")}
    running, last_return = torch.zeros(args.num_envs, device=envs.device), torch.zeros(args.num_envs, device=envs.device)

    obs, _ = envs.reset(seed=args.seed)
    iterations, begin = max(1, args.total_steps // (args.num_steps * args.num_envs)), time.perf_counter()
    for iteration in range(1, iterations + 1):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - (iteration - 1) / iterations)

        with torch.no_grad():
            for t in range(args.num_steps):
                policy = agent.policy(obs)
                action = policy.sample()
                step = {"obs": obs, "action": action, "log_prob": policy.log_prob(action).sum(-1), "value": agent.value(obs)}
                obs, reward, terminated, truncated, infos = envs.step(action.clamp(low, high))
                ended = terminated | truncated
                # `obs` is the next episode's first where one ended. A truncated one is still worth what its last was.
                step["next_value"] = agent.value(torch.where(ended[:, None], infos["final_obs"], obs))
                for name, value in (step | {"reward": args.reward_scale * reward}).items():
                    rollout[name][t] = value
                flags["terminated"][t], flags["ended"][t] = terminated, ended
                running += reward
                last_return = torch.where(ended, running, last_return)
                running = running.masked_fill(ended, 0.0)

            delta = rollout["reward"] + args.gamma * rollout["next_value"] * ~flags["terminated"] - rollout["value"]
            advantage = torch.zeros_like(delta[0])
            for t in reversed(range(args.num_steps)):
                advantage = delta[t] + args.gamma * args.gae_lambda * ~flags["ended"][t] * advantage
                rollout["advantage"][t] = advantage

        batch = {name: x.flatten(0, 1) for name, x in rollout.items()}
        target = batch["advantage"] + batch["value"]
        for _ in range(args.update_epochs):
            for rows in torch.randperm(len(target), device=envs.device).chunk(args.num_minibatches):
                policy = agent.policy(batch["obs"][rows])
                ratio = (policy.log_prob(batch["action"][rows]).sum(-1) - batch["log_prob"][rows]).exp()
                gain = batch["advantage"][rows]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.min(ratio * gain, ratio.clamp(1.0 - args.clip, 1.0 + args.clip) * gain).mean()
                error = 0.5 * (agent.value(batch["obs"][rows]) - target[rows]).square().mean()
                loss = args.vf_coef * error - surrogate - args.ent_coef * policy.entropy().sum(-1).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            steps = iteration * args.num_steps * args.num_envs
            rate = steps / (time.perf_counter() - begin)
            print(f"{steps:>12,} steps  {rate:>12,.0f}/s  last return {last_return.mean():.1f}", flush=True)
    envs.close()
    return float(last_return.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
