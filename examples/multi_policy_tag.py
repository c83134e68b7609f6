"""PPO with a policy for each role in one file, in the manner of CleanRL: `gymnasium.make_vec` and torch.

    python examples/multi_policy_tag.py --num-envs 256 --device cuda

Taggers and runners of TagContinuous learn at the same time, each role with networks of its own. The agents of a role are a
slice of the axis of agents, so what a policy sees is a view. Letters: E environments, A agents of a role, T steps, D features,
K action components.
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

    env_id: str = "gpuvec/TagContinuous-v0"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    num_taggers: int = 2
    num_runners: int = 8
    total_steps: int = 160_000
    """Environment steps in all."""
    num_envs: int = 32
    num_steps: int = 100
    """Steps of each environment per iteration: whole episodes, as all end together."""
    update_epochs: int = 4
    num_minibatches: int = 16
    learning_rate: float = 2e-3
    """Falls to 0 in the course of the training."""
    gamma: float = 0.9
    gae_lambda: float = 0.8
    clip: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


class Policy(nn.Module):
    """What the agents of a role do, and what they expect, from observations in units of their standard deviation."""

    def __init__(self, features: int, actions: list[int]) -> None:
        super().__init__()
        self.actions = actions
        self.actor = nn.Sequential(
            nn.Linear(features, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, sum(actions))
        )
        self.critic = nn.Sequential(nn.Linear(features, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
        with torch.no_grad():
            self.actor[-1].weight.mul_(0.01)
        for name, value in (("count", 0.0), ("mean", torch.zeros(features)), ("square", torch.ones(features))):
            self.register_buffer(name, torch.as_tensor(value))

    def observe(self, obs: Tensor) -> None:
        """Lets observations, (N, D), count for the scale."""
        self.count += len(obs)
        share = len(obs) / self.count
        self.mean.lerp_(obs.mean(0), share)
        self.square.lerp_(obs.square().mean(0), share)

    def seen(self, obs: Tensor) -> Tensor:
        """Observations as the networks see them."""
        return ((obs - self.mean) / (self.square - self.mean.square()).clamp_min(1e-6).sqrt()).clamp(-10.0, 10.0)

    def heads(self, obs: Tensor) -> list[Categorical]:
        """The distribution of each component of the action."""
        logits = self.actor(self.seen(obs)).split(self.actions, -1)
        return [Categorical(logits=x, validate_args=False) for x in logits]

    def value(self, obs: Tensor) -> Tensor:
        """V(obs)."""
        return self.critic(self.seen(obs)).squeeze(-1)


def log_prob(heads: list[Categorical], action: Tensor) -> Tensor:
    """Of actions (..., K)."""
    return sum(head.log_prob(a) for head, a in zip(heads, action.unbind(-1), strict=True))


def improve(policy: Policy, optimizer: torch.optim.Optimizer, steps: list[dict[str, Tensor]], args: Args) -> None:
    """The PPO update of one policy, from what its agents did."""
    rollout = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}  # (T, E, A, ...)
    with torch.no_grad():
        value, next_value = policy.value(rollout["obs"]), policy.value(rollout["next_obs"])
        old = log_prob(policy.heads(rollout["obs"]), rollout["action"])
        delta = rollout["reward"] + args.gamma * next_value * ~rollout["over"] - value
        advantage, total = torch.empty_like(delta), torch.zeros_like(delta[0])
        for t in reversed(range(len(steps))):
            total = delta[t] + args.gamma * args.gae_lambda * ~rollout["ended"][t] * total
            advantage[t] = total
    here = rollout["mask"]  # who has left the game does not count
    obs, action, old, gain, target = (x[here] for x in (rollout["obs"], rollout["action"], old, advantage, advantage + value))
    for _ in range(args.update_epochs):
        for rows in torch.randperm(len(obs), device=obs.device).chunk(args.num_minibatches):
            heads = policy.heads(obs[rows])
            ratio = (log_prob(heads, action[rows]) - old[rows]).exp()
            scaled = (gain[rows] - gain[rows].mean()) / (gain[rows].std() + 1e-8)
            surrogate = torch.min(ratio * scaled, ratio.clamp(1.0 - args.clip, 1.0 + args.clip) * scaled).mean()
            error = 0.5 * (policy.value(obs[rows]) - target[rows]).square().mean()
            entropy = sum(head.entropy() for head in heads).mean()
            loss = args.vf_coef * error - surrogate - args.ent_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
            optimizer.step()
    policy.observe(obs)


def main(args: Args) -> float:
    """Trains; returns the share of the runners that were caught in the last rollout."""
    torch.manual_seed(args.seed)
    game = {"num_taggers": args.num_taggers, "num_runners": args.num_runners, "grid_length": 10.0, "max_episode_steps": 100}
    game |= {"max_acceleration": 0.1, "min_acceleration": -0.1, "tagging_distance": 0.03, "observe_self": True}
    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep", **game)
    features, actions = envs.single_observation_space.shape[-1], envs.single_action_space.nvec[0].tolist()
    policies = {role: Policy(features, actions).to(envs.device) for role in envs.roles}
    optimizers = {role: torch.optim.Adam(p.parameters(), lr=args.learning_rate, eps=1e-5) for role, p in policies.items()}

    obs, _ = envs.reset(seed=args.seed)
    for role, agents in envs.roles.items():
        policies[role].observe(obs[:, agents].flatten(0, 1))
    iterations, begin = max(1, args.total_steps // (args.num_steps * args.num_envs)), time.perf_counter()
    for iteration in range(1, iterations + 1):
        steps: dict[str, list[dict[str, Tensor]]] = {role: [] for role in policies}
        for _ in range(args.num_steps):
            action = torch.empty((args.num_envs, *envs.single_action_space.shape), dtype=torch.int64, device=envs.device)
            with torch.no_grad():
                for role, agents in envs.roles.items():
                    heads = policies[role].heads(obs[:, agents])
                    action[:, agents] = torch.stack([head.sample() for head in heads], -1)
            before = obs
            obs, reward, terminated, truncated, infos = envs.step(action)
            ended = (terminated | truncated)[:, None]
            over = infos["agent_terminated"] | terminated[:, None]  # the agent has left, or all have
            step = {"obs": before, "action": action, "reward": reward, "mask": infos["agent_mask"], "over": over}
            step |= {"ended": over | ended, "next_obs": torch.where(ended[..., None], infos["final_obs"], obs)}
            for role, agents in envs.roles.items():
                steps[role].append({name: x[:, agents] for name, x in step.items()})
        for role, policy in policies.items():
            optimizers[role].param_groups[0]["lr"] = args.learning_rate * (1.0 - (iteration - 1) / iterations)
            improve(policy, optimizers[role], steps[role], args)

        runners = steps["runner"]
        caught = torch.stack([step["over"] & step["mask"] for step in runners]).sum() / args.num_envs / args.num_runners
        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            done = iteration * args.num_steps * args.num_envs
            rate = done / (time.perf_counter() - begin)
            print(f"{done:>12,} steps  {rate:>12,.0f}/s  caught {100.0 * caught:.0f} % of the runners", flush=True)
    envs.close()
    return float(caught)


if __name__ == "__main__":
    main(tyro.cli(Args))
