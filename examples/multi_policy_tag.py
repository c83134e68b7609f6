"""PPO with a policy for each role in one file, in the style of CleanRL: `gymnasium.make_vec` and torch.

    python examples/multi_policy_tag.py --num-envs 256 --device cuda

Taggers and runners of TagContinuous learn at the same time, each role with its own networks. The agents of a role are a slice
of the axis of agents, so the data of a policy are views. Letters: E environments, A agents of a role, T steps, D features,
K action components.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter

import gpuvec
from gpuvec.replay import encode_video


@dataclass
class Args:
    """The settings; each is an option of the command line."""

    env_id: str = "gpuvec/TagContinuous-v0"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    num_taggers: int = 2
    num_runners: int = 8
    total_steps: int = 160_000
    """Total number of environment steps."""
    num_envs: int = 32
    num_steps: int = 100
    """Steps of each environment per iteration: whole episodes, since all end at the same time."""
    update_epochs: int = 4
    num_minibatches: int = 16
    learning_rate: float = 2e-3
    """Step size of Adam in the first iteration; it decreases linearly to 0."""
    gamma: float = 0.9
    gae_lambda: float = 0.8
    clip: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    track: bool = False
    """Send the logs to Weights & Biases, too."""
    wandb_project_name: str = "gpuvec"
    wandb_entity: str | None = None
    """The user or the team at Weights & Biases."""
    capture_video: bool = False
    """Write videos of the policy to videos/, before the training and ten times in it. They need the extra `video`."""


class Policy(nn.Module):
    """The policy and the value function of a role, with observations normalized by their mean and standard deviation.

    Args:
        features: of an observation, D.
        actions: the number of actions of each component.
    """

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

    def update_statistics(self, obs: Tensor) -> None:
        """Updates mean and standard deviation with `obs`, (N, D)."""
        self.count += len(obs)
        share = len(obs) / self.count
        self.mean.lerp_(obs.mean(0), share)
        self.square.lerp_(obs.square().mean(0), share)

    def normalize(self, obs: Tensor) -> Tensor:
        """Returns normalized observations of the shape of `obs`, (..., D)."""
        return ((obs - self.mean) / (self.square - self.mean.square()).clamp_min(1e-6).sqrt()).clamp(-10.0, 10.0)

    def heads(self, obs: Tensor) -> list[Categorical]:
        """Returns the distribution of each component of the action for `obs`, (..., D)."""
        logits = self.actor(self.normalize(obs)).split(self.actions, -1)
        return [Categorical(logits=x, validate_args=False) for x in logits]

    def value(self, obs: Tensor) -> Tensor:
        """Returns the values, (...), of `obs`, (..., D)."""
        return self.critic(self.normalize(obs)).squeeze(-1)


def log_prob(heads: list[Categorical], action: Tensor) -> Tensor:
    """Returns the log-probabilities, (...), of `action`, (..., K), whose components have the distributions `heads`."""
    return sum(head.log_prob(component) for head, component in zip(heads, action.unbind(-1), strict=True))


def update(policy: Policy, optimizer: torch.optim.Optimizer, steps: list[dict[str, Tensor]], args: Args) -> None:
    """Updates one policy by PPO.

    Args:
        policy: the policy.
        optimizer: of its parameters.
        steps: {name: (E, A, ...)} of each step of the rollout.
        args: the settings.
    """
    rollout = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}  # (T, E, A, ...)
    with torch.no_grad():
        value, next_value = policy.value(rollout["obs"]), policy.value(rollout["next_obs"])
        old_log_prob = log_prob(policy.heads(rollout["obs"]), rollout["action"])
        delta = rollout["reward"] + args.gamma * next_value * ~rollout["terminated"] - value
        advantage, next_advantage = torch.empty_like(delta), torch.zeros_like(delta[0])
        for t in reversed(range(len(steps))):
            next_advantage = delta[t] + args.gamma * args.gae_lambda * ~rollout["ended"][t] * next_advantage
            advantage[t] = next_advantage
        target = advantage + value
    mask = rollout["mask"]  # inactive agents do not count
    obs, action, old_log_prob = (x[mask] for x in (rollout["obs"], rollout["action"], old_log_prob))
    advantage, target = advantage[mask], target[mask]
    for _ in range(args.update_epochs):
        for rows in torch.randperm(len(obs), device=obs.device).chunk(args.num_minibatches):
            heads = policy.heads(obs[rows])
            ratio = (log_prob(heads, action[rows]) - old_log_prob[rows]).exp()
            normalized = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            surrogate = torch.min(ratio * normalized, ratio.clamp(1.0 - args.clip, 1.0 + args.clip) * normalized).mean()
            value_loss = 0.5 * (policy.value(obs[rows]) - target[rows]).square().mean()
            entropy = sum(head.entropy() for head in heads).mean()
            loss = args.vf_coef * value_loss - surrogate - args.ent_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
            optimizer.step()
    policy.update_statistics(obs)


def start_log(args: Args, run_name: str) -> SummaryWriter:
    """Begins the logs of a run in runs/, for TensorBoard, which Weights & Biases copies with `--track`."""
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name, entity=args.wandb_entity, name=run_name, config=vars(args), sync_tensorboard=True
        )
    writer = SummaryWriter(f"runs/{run_name}")
    rows = "\n".join(f"|{name}|{value}|" for name, value in vars(args).items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
    return writer


def record_video(act: Callable[[Tensor], Tensor], args: Args, run_name: str, steps: int, **game: float) -> None:
    """Writes a video of an episode in which `act` chooses the actions, (1, A, K), for the observations, (1, A, D)."""
    envs = gymnasium.make_vec(args.env_id, num_envs=1, device=args.device, **game)
    with torch.no_grad():
        episodes = gpuvec.fetch_episode(envs, act, seed=args.seed)
    envs.close()
    path = Path("videos") / run_name / f"{steps}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_video(episodes, ".mp4"))
    if args.track:
        import wandb

        wandb.log({"video": wandb.Video(str(path))})


def main(args: Args) -> float:
    """Trains with the settings `args`; returns the share of the runners that were caught in the last rollout."""
    torch.manual_seed(args.seed)
    game = {"num_taggers": args.num_taggers, "num_runners": args.num_runners, "grid_length": 10.0, "max_episode_steps": 100}
    game |= {"max_acceleration": 0.1, "min_acceleration": -0.1, "tagging_distance": 0.03, "observe_self": True}
    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep", **game)
    features, actions = envs.single_observation_space.shape[-1], envs.single_action_space.nvec[0].tolist()
    policies = {role: Policy(features, actions).to(envs.device) for role in envs.roles}
    optimizers = {role: torch.optim.Adam(p.parameters(), lr=args.learning_rate, eps=1e-5) for role, p in policies.items()}

    obs, _ = envs.reset(seed=args.seed)
    for role, agents in envs.roles.items():
        policies[role].update_statistics(obs[:, agents].flatten(0, 1))

    def act(obs: Tensor) -> Tensor:
        """Returns the likeliest actions, (E, A, K), for `obs`, (E, A, D)."""
        action = torch.empty((len(obs), *envs.single_action_space.shape), dtype=torch.int64, device=envs.device)
        for role, agents in envs.roles.items():
            action[:, agents] = torch.stack([head.logits.argmax(-1) for head in policies[role].heads(obs[:, agents])], -1)
        return action

    run_name = f"{args.env_id.rpartition('/')[2]}__multi_policy_tag__{args.seed}__{int(time.time())}"
    writer = start_log(args, run_name)
    if args.capture_video:
        record_video(act, args, run_name, 0, **game)
    iterations, start = max(1, args.total_steps // (args.num_steps * args.num_envs)), time.perf_counter()
    for iteration in range(1, iterations + 1):
        steps: dict[str, list[dict[str, Tensor]]] = {role: [] for role in policies}
        for _ in range(args.num_steps):
            action = torch.empty((args.num_envs, *envs.single_action_space.shape), dtype=torch.int64, device=envs.device)
            with torch.no_grad():
                for role, agents in envs.roles.items():
                    heads = policies[role].heads(obs[:, agents])
                    action[:, agents] = torch.stack([head.sample() for head in heads], -1)
            step = {"obs": obs, "action": action}
            obs, reward, terminated, truncated, infos = envs.step(action)
            ended = (terminated | truncated)[:, None]
            agent_terminated = infos["agent_terminated"] | terminated[:, None]
            step |= {"reward": reward, "mask": infos["agent_mask"], "terminated": agent_terminated}
            step |= {"ended": agent_terminated | ended, "next_obs": torch.where(ended[..., None], infos["final_obs"], obs)}
            for role, agents in envs.roles.items():
                steps[role].append({name: x[:, agents] for name, x in step.items()})
        for role, policy in policies.items():
            optimizers[role].param_groups[0]["lr"] = args.learning_rate * (1.0 - (iteration - 1) / iterations)
            update(policy, optimizers[role], steps[role], args)

        runners = steps["runner"]
        caught = torch.stack([step["terminated"] & step["mask"] for step in runners]).sum() / args.num_envs / args.num_runners
        num_steps = iteration * args.num_steps * args.num_envs
        rate = num_steps / (time.perf_counter() - start)
        if iteration % max(1, iterations // 100) == 0 or iteration == iterations:
            metrics = {"charts/caught": caught, "charts/SPS": rate}
            for name, value in metrics.items():
                writer.add_scalar(name, value, num_steps)
        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            print(f"{num_steps:>12,} steps  {rate:>12,.0f}/s  caught {100.0 * caught:.0f} % of the runners", flush=True)
            if args.capture_video:
                record_video(act, args, run_name, num_steps, **game)
    writer.close()
    envs.close()
    return float(caught)


if __name__ == "__main__":
    main(tyro.cli(Args))
