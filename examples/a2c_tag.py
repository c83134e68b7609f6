"""A2C for a game of many agents in one file, in the manner of CleanRL: `gymnasium.make_vec` and torch.

    python examples/a2c_tag.py --num-envs 2000 --device cuda

Advantage actor-critic (Mnih et al., 2016, without the asynchrony): one gradient step per rollout, on returns of up to T steps
that end with the value function's estimate. All agents of TagGridWorld share one policy; observations tell them their roles.
Letters: E environments, A agents, T steps, D features.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import gymnasium
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical

import gpuvec  # noqa: F401  # registers the environments


@dataclass
class Args:
    """Settings."""

    env_id: str = "gpuvec/TagGridWorld-v0"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    num_taggers: int = 4
    grid_length: int = 8
    total_steps: int = 1_000_000
    """Environment steps in all."""
    num_envs: int = 256
    num_steps: int = 16
    """Steps of each environment per iteration."""
    learning_rate: float = 3e-3
    """Falls to 0 in the course of the training."""
    gamma: float = 0.95
    reward_scale: float = 0.1
    """What rewards are multiplied with before anything is learnt from them."""
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class Agent(nn.Module):
    """The policy and the value function of every agent."""

    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, actions), nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        """The distribution of actions, and V(obs)."""
        hidden = self.trunk(obs)
        return Categorical(logits=self.actor(hidden), validate_args=False), self.critic(hidden).squeeze(-1)


def main(args: Args) -> float:
    """Trains; returns the share of the last episodes that ended with a tag."""
    torch.manual_seed(args.seed)
    options = {"num_taggers": args.num_taggers, "grid_length": args.grid_length, "max_episode_steps": 50}
    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep", **options)
    _, features = envs.single_observation_space.shape  # (A, D)
    agent = Agent(features, int(envs.single_action_space.nvec[0])).to(envs.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    tagged = torch.zeros(args.num_envs, device=envs.device)  # whether the last episode of each ended so

    obs, _ = envs.reset(seed=args.seed)
    iterations, begin = max(1, args.total_steps // (args.num_steps * args.num_envs)), time.perf_counter()
    for iteration in range(1, iterations + 1):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - (iteration - 1) / iterations)

        steps = []
        for _ in range(args.num_steps):
            with torch.no_grad():
                action = agent(obs)[0].sample()  # (E, A)
            before = obs
            obs, reward, terminated, truncated, infos = envs.step(action)
            ended = terminated | truncated
            over = infos["agent_terminated"] | terminated[:, None]  # the agent has left, or all have
            step = {"obs": before, "action": action, "reward": args.reward_scale * reward, "mask": infos["agent_mask"]}
            final_obs = torch.where(ended[:, None, None], infos["final_obs"], obs)
            steps.append(step | {"over": over, "ended": over | ended[:, None], "final_obs": final_obs})
            tagged = torch.where(ended, terminated.float(), tagged)

        rollout = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}  # (T, E, A, ...)
        with torch.no_grad():  # after a truncated episode, and after the last step, comes what the value function expects
            following = agent(rollout["final_obs"])[1] * ~rollout["over"]
            target, total = torch.empty_like(following), following[-1]
            for t in reversed(range(args.num_steps)):
                total = rollout["reward"][t] + args.gamma * torch.where(rollout["ended"][t], following[t], total)
                target[t] = total
        policy, value = agent(rollout["obs"])
        weight = rollout["mask"] / rollout["mask"].sum()  # who is not in the game any more does not count
        advantage = target - value
        policy_loss = -(weight * advantage.detach() * policy.log_prob(rollout["action"])).sum()
        value_loss = 0.5 * (weight * advantage.square()).sum()
        entropy = (weight * policy.entropy()).sum()
        optimizer.zero_grad()
        (policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy).backward()
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()

        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            done = iteration * args.num_steps * args.num_envs
            rate, rewards = done / (time.perf_counter() - begin), rollout["reward"].mean((0, 1)) / args.reward_scale
            taggers, runner = (rewards[envs.roles[role]].mean() for role in ("tagger", "runner"))
            print(
                f"{done:>12,} steps  {rate:>12,.0f}/s  reward per step: taggers {taggers:.3f}, runner {runner:.3f}  "
                f"episodes that end with a tag {100.0 * tagged.mean():.0f} %",
                flush=True,
            )
    envs.close()
    return float(tagged.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
