"""DDPG in one file, in the manner of CleanRL: `gymnasium.make_vec` and torch.

    python examples/ddpg_continuous_action.py --env-id gpuvec/Pendulum-v1 --num-envs 32 --device cuda

Deep deterministic policy gradient (Lillicrap et al., 2016): a critic Q(s, a) learns from replayed steps, a deterministic actor
climbs it, and slow copies of both make the targets. The replay memory is a ring on the device. Letters: E environments,
D features, K action components.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import gymnasium
import torch
import tyro
from torch import Tensor, nn

import gpuvec  # noqa: F401  # registers the environments


@dataclass
class Args:
    """Settings."""

    env_id: str = "gpuvec/Pendulum-v1"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    total_steps: int = 60_000
    """Environment steps in all."""
    num_envs: int = 32
    buffer_size: int = 100_000
    """Steps that the replay memory holds."""
    learning_starts: int = 2_000
    """Steps with random actions before anything is learnt."""
    gradient_steps: int = 4
    """Gradient steps of actor and critic per step of all environments."""
    batch_size: int = 256
    actor_learning_rate: float = 5e-4
    critic_learning_rate: float = 1e-3
    gamma: float = 0.98
    tau: float = 0.01
    """Share by which the slow copies follow."""
    noise: float = 0.1
    """Standard deviation of what is added to actions, in half widths of their range."""


class Actor(nn.Module):
    """A deterministic policy, within the bounds of the actions."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        space = envs.single_action_space
        self.net = nn.Sequential(
            nn.Linear(envs.single_observation_space.shape[0], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, space.shape[0]), nn.Tanh(),
        )  # fmt: skip
        self.register_buffer("scale", torch.as_tensor(0.5 * (space.high - space.low)))
        self.register_buffer("centre", torch.as_tensor(0.5 * (space.high + space.low)))

    def forward(self, obs: Tensor) -> Tensor:
        """The action."""
        return self.net(obs) * self.scale + self.centre


class Critic(nn.Module):
    """Q(obs, action)."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        inputs = envs.single_observation_space.shape[0] + envs.single_action_space.shape[0]
        self.net = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """What is to be expected from it."""
        return self.net(torch.cat([obs, action], -1)).squeeze(-1)


def main(args: Args) -> float:
    """Trains; returns the mean return of each environment's last episode."""
    torch.manual_seed(args.seed)
    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep")
    actor, critic = Actor(envs).to(envs.device), Critic(envs).to(envs.device)
    slow_actor, slow_critic = copy.deepcopy(actor).requires_grad_(False), copy.deepcopy(critic).requires_grad_(False)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.actor_learning_rate)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.critic_learning_rate)
    low, high = actor.centre - actor.scale, actor.centre + actor.scale

    rows = args.buffer_size // args.num_envs  # the memory holds that many steps of all environments, the oldest go first
    widths = {"obs": envs.single_observation_space.shape, "next_obs": envs.single_observation_space.shape}
    widths |= {"action": envs.single_action_space.shape, "reward": (), "terminated": ()}
    memory = {k: torch.zeros((rows, args.num_envs, *width), device=envs.device) for k, width in widths.items()}
    running, last_return = torch.zeros(args.num_envs, device=envs.device), torch.zeros(args.num_envs, device=envs.device)

    obs, _ = envs.reset(seed=args.seed)
    iterations, begin = max(1, args.total_steps // args.num_envs), time.perf_counter()
    for iteration in range(1, iterations + 1):
        learning = iteration * args.num_envs > args.learning_starts
        with torch.no_grad():
            if learning:
                action = actor(obs)
                action = (action + args.noise * actor.scale * torch.randn_like(action)).clamp(low, high)
            else:
                action = low + (high - low) * torch.rand((args.num_envs, *low.shape), device=envs.device)
        next_obs, reward, terminated, truncated, infos = envs.step(action)
        ended = terminated | truncated
        # `next_obs` is the next episode's first where one ended; what the step led to is in `final_obs`.
        step = {"obs": obs, "next_obs": torch.where(ended[:, None], infos["final_obs"], next_obs), "action": action}
        for name, value in (step | {"reward": reward, "terminated": terminated}).items():
            memory[name][(iteration - 1) % rows] = value
        obs = next_obs
        running += reward
        last_return = torch.where(ended, running, last_return)
        running = running.masked_fill(ended, 0.0)

        for _ in range(args.gradient_steps if learning else 0):
            chosen = torch.randint(min(iteration, rows) * args.num_envs, (args.batch_size,), device=envs.device)
            batch = {name: x.flatten(0, 1)[chosen] for name, x in memory.items()}
            with torch.no_grad():
                next_q = slow_critic(batch["next_obs"], slow_actor(batch["next_obs"]))
                target = batch["reward"] + args.gamma * (1.0 - batch["terminated"]) * next_q
            critic_loss = (critic(batch["obs"], batch["action"]) - target).square().mean()
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()

            actor_loss = -critic(batch["obs"], actor(batch["obs"])).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()  # the critic's gradients of this are cleared before it learns
            actor_optimizer.step()
            with torch.no_grad():
                for slow, fast in ((slow_actor, actor), (slow_critic, critic)):
                    for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
                        p.lerp_(q, args.tau)

        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            steps = iteration * args.num_envs
            rate = steps / (time.perf_counter() - begin)
            print(f"{steps:>12,} steps  {rate:>12,.0f}/s  last return {last_return.mean():.1f}", flush=True)
    envs.close()
    return float(last_return.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
