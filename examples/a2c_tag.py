"""A2C for an environment with many agents in one file, in the style of CleanRL: `gymnasium.make_vec` and torch.

    python examples/a2c_tag.py --num-envs 2000 --device cuda

Advantage actor-critic (Mnih et al., 2016, without the asynchrony): one gradient step per rollout, with returns of up to T steps
that are bootstrapped from the value function. All agents of TagGridWorld share one policy; observations contain their roles.
Letters: E environments, A agents, T steps, D features.
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

    env_id: str = "gpuvec/TagGridWorld-v0"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    num_taggers: int = 4
    grid_length: int = 8
    total_steps: int = 1_000_000
    """Total number of environment steps."""
    num_envs: int = 256
    num_steps: int = 16
    """Steps of each environment per iteration."""
    learning_rate: float = 3e-3
    """Step size of Adam in the first iteration; it decreases linearly to 0."""
    gamma: float = 0.95
    reward_scale: float = 0.1
    """Factor of the rewards that are learned from."""
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    track: bool = False
    """Send the logs to Weights & Biases, too."""
    wandb_project_name: str = "gpuvec"
    wandb_entity: str | None = None
    """The user or the team at Weights & Biases."""
    capture_video: bool = False
    """Write videos of the policy to videos/, before the training and ten times in it. They need the extra `video`."""


class Agent(nn.Module):
    """The policy and the value function that all agents share.

    Args:
        features: of an observation, D.
        actions: how many there are.
    """

    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, actions), nn.Linear(64, 1)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        """Returns the distribution of actions and the values, (...), for `obs`, (..., D)."""
        hidden = self.trunk(obs)
        return Categorical(logits=self.actor(hidden), validate_args=False), self.critic(hidden).squeeze(-1)

    def act(self, obs: Tensor) -> Tensor:
        """Returns the likeliest actions, (...), for `obs`, (..., D)."""
        return self(obs)[0].probs.argmax(-1)


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


def record_video(act: Callable[[Tensor], Tensor], args: Args, run_name: str, steps: int, **options: int) -> None:
    """Writes a video of an episode in which `act` chooses the actions, (1, A), for the observations, (1, A, D)."""
    envs = gymnasium.make_vec(args.env_id, num_envs=1, device=args.device, **options)
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
    """Trains with the settings `args`; returns the share of the last episodes that ended with a tag."""
    torch.manual_seed(args.seed)
    options = {"num_taggers": args.num_taggers, "grid_length": args.grid_length, "max_episode_steps": 50}
    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep", **options)
    _, features = envs.single_observation_space.shape  # (A, D)
    agent = Agent(features, int(envs.single_action_space.nvec[0])).to(envs.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    is_tagged = torch.zeros(args.num_envs, device=envs.device)  # whether the last episode of each env ended with a tag

    run_name = f"{args.env_id.rpartition('/')[2]}__a2c_tag__{args.seed}__{int(time.time())}"
    writer = start_log(args, run_name)
    if args.capture_video:
        record_video(agent.act, args, run_name, 0, **options)

    obs, _ = envs.reset(seed=args.seed)
    iterations, start = max(1, args.total_steps // (args.num_steps * args.num_envs)), time.perf_counter()
    for iteration in range(1, iterations + 1):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - (iteration - 1) / iterations)

        steps = []
        for _ in range(args.num_steps):
            with torch.no_grad():
                action = agent(obs)[0].sample()  # (E, A)
            step = {"obs": obs, "action": action}
            obs, reward, terminated, truncated, infos = envs.step(action)
            ended = terminated | truncated
            agent_terminated = infos["agent_terminated"] | terminated[:, None]
            step |= {"reward": args.reward_scale * reward, "mask": infos["agent_mask"], "terminated": agent_terminated}
            step |= {"ended": agent_terminated | ended[:, None]}
            steps.append(step | {"next_obs": torch.where(ended[:, None, None], infos["final_obs"], obs)})
            is_tagged = torch.where(ended, terminated.float(), is_tagged)

        rollout = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}  # (T, E, A, ...)
        with torch.no_grad():  # returns are bootstrapped after a truncated episode and after the last step
            next_value = agent(rollout["next_obs"])[1] * ~rollout["terminated"]
            target, n_step_return = torch.empty_like(next_value), next_value[-1]
            for t in reversed(range(args.num_steps)):
                next_return = torch.where(rollout["ended"][t], next_value[t], n_step_return)
                n_step_return = rollout["reward"][t] + args.gamma * next_return
                target[t] = n_step_return
        policy, value = agent(rollout["obs"])
        weight = rollout["mask"] / rollout["mask"].sum()  # inactive agents do not count
        advantage = target - value
        policy_loss = -(weight * advantage.detach() * policy.log_prob(rollout["action"])).sum()
        value_loss = 0.5 * (weight * advantage.square()).sum()
        entropy = (weight * policy.entropy()).sum()
        optimizer.zero_grad()
        (policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy).backward()
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()

        num_steps = iteration * args.num_steps * args.num_envs
        rate = num_steps / (time.perf_counter() - start)
        if iteration % max(1, iterations // 100) == 0 or iteration == iterations:
            metrics = {
                "charts/tagged": is_tagged.mean(),
                "charts/SPS": rate,
                "losses/value_loss": value_loss,
                "losses/entropy": entropy,
            }
            for name, value in metrics.items():
                writer.add_scalar(name, value, num_steps)
        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            rewards = rollout["reward"].mean((0, 1)) / args.reward_scale
            taggers, runner = (rewards[envs.roles[role]].mean() for role in ("tagger", "runner"))
            print(
                f"{num_steps:>12,} steps  {rate:>12,.0f}/s  reward per step: taggers {taggers:.3f}, runner {runner:.3f}  "
                f"episodes that end with a tag {100.0 * is_tagged.mean():.0f} %",
                flush=True,
            )
            if args.capture_video:
                record_video(agent.act, args, run_name, num_steps, **options)
    writer.close()
    envs.close()
    return float(is_tagged.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
