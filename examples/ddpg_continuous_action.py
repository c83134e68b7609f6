"""DDPG in one file, in the style of CleanRL: `gymnasium.make_vec` and torch.

    python examples/ddpg_continuous_action.py --env-id gpuvec/Pendulum-v1 --num-envs 32 --device cuda

Deep deterministic policy gradient (Lillicrap et al., 2016): a critic Q(s, a) learns from a replay buffer, a deterministic actor
maximizes it, and target networks, which follow both slowly, give the targets. The replay buffer is stored on the device.
Letters: E environments, D features, K action components.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import torch
import tyro
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

import gpuvec
from gpuvec.replay import encode_video


@dataclass
class Args:
    """The settings; each is an option of the command line."""

    env_id: str = "gpuvec/Pendulum-v1"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    total_steps: int = 60_000
    """Total number of environment steps."""
    num_envs: int = 32
    buffer_size: int = 100_000
    """Steps in the replay buffer."""
    learning_starts: int = 2_000
    """Steps with random actions before the first update."""
    gradient_steps: int = 4
    """Gradient steps of actor and critic per step of all environments."""
    batch_size: int = 256
    actor_learning_rate: float = 5e-4
    critic_learning_rate: float = 1e-3
    gamma: float = 0.98
    tau: float = 0.01
    """Step of the target networks towards the networks, as a share of the difference."""
    noise: float = 0.1
    """Standard deviation of the noise on actions, in half ranges of the action."""
    track: bool = False
    """Send the logs to Weights & Biases, too."""
    wandb_project_name: str = "gpuvec"
    wandb_entity: str | None = None
    """The user or the team at Weights & Biases."""
    capture_video: bool = False
    """Write videos of the policy to videos/, before the training and ten times in it. They need the extra `video`."""


class Actor(nn.Module):
    """A deterministic policy within the bounds of the actions; `envs` has the spaces."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        space = envs.single_action_space
        self.net = nn.Sequential(
            nn.Linear(envs.single_observation_space.shape[0], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, space.shape[0]), nn.Tanh(),
        )  # fmt: skip
        self.register_buffer("scale", torch.as_tensor(0.5 * (space.high - space.low)))
        self.register_buffer("center", torch.as_tensor(0.5 * (space.high + space.low)))

    def forward(self, obs: Tensor) -> Tensor:
        """Returns the actions, (N, K), for `obs`, (N, D)."""
        return self.net(obs) * self.scale + self.center


class Critic(nn.Module):
    """The action-value function Q; `envs` has the spaces."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        inputs = envs.single_observation_space.shape[0] + envs.single_action_space.shape[0]
        self.net = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Returns the values, (N,), of `action`, (N, K), at `obs`, (N, D)."""
        return self.net(torch.cat([obs, action], -1)).squeeze(-1)


@torch.no_grad()
def update_target(target_net: nn.Module, net: nn.Module, tau: float) -> None:
    """Moves the weights of `target_net` towards those of `net` by the share `tau` of the difference."""
    for target_weight, weight in zip(target_net.parameters(), net.parameters(), strict=True):
        target_weight.lerp_(weight, tau)


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


def record_video(act: Callable[[Tensor], Tensor], args: Args, run_name: str, steps: int) -> None:
    """Writes a video of an episode in which `act` chooses the actions, (1, K), for the observations, (1, D)."""
    envs = gymnasium.make_vec(args.env_id, num_envs=1, device=args.device)
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
    """Trains with the settings `args`; returns the mean over all environments of the last episode's return."""
    torch.manual_seed(args.seed)
    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, device=args.device, autoreset_mode="SameStep")
    actor, critic = Actor(envs).to(envs.device), Critic(envs).to(envs.device)
    target_actor, target_critic = copy.deepcopy(actor).requires_grad_(False), copy.deepcopy(critic).requires_grad_(False)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.actor_learning_rate)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.critic_learning_rate)
    low, high = actor.center - actor.scale, actor.center + actor.scale

    rows = args.buffer_size // args.num_envs  # the buffer stores that many steps of all environments
    shapes = {"obs": envs.single_observation_space.shape, "next_obs": envs.single_observation_space.shape}
    shapes |= {"action": envs.single_action_space.shape, "reward": (), "terminated": ()}
    replay = {k: torch.zeros((rows, args.num_envs, *shape), device=envs.device) for k, shape in shapes.items()}
    running_return, last_return = torch.zeros(args.num_envs, device=envs.device), torch.zeros(args.num_envs, device=envs.device)

    run_name = f"{args.env_id.rpartition('/')[2]}__ddpg_continuous_action__{args.seed}__{int(time.time())}"
    writer = start_log(args, run_name)
    if args.capture_video:
        record_video(actor, args, run_name, 0)

    obs, _ = envs.reset(seed=args.seed)
    iterations, start = max(1, args.total_steps // args.num_envs), time.perf_counter()
    for iteration in range(1, iterations + 1):
        is_learning = iteration * args.num_envs > args.learning_starts
        with torch.no_grad():
            if is_learning:
                action = actor(obs)
                action = (action + args.noise * actor.scale * torch.randn_like(action)).clamp(low, high)
            else:
                action = low + (high - low) * torch.rand((args.num_envs, *low.shape), device=envs.device)
        next_obs, reward, terminated, truncated, infos = envs.step(action)
        ended = terminated | truncated
        # If an episode ended, `next_obs` is the first observation of the next one, and `final_obs` the last of this one.
        step = {"obs": obs, "next_obs": torch.where(ended[:, None], infos["final_obs"], next_obs), "action": action}
        for name, value in (step | {"reward": reward, "terminated": terminated}).items():
            replay[name][(iteration - 1) % rows] = value
        obs = next_obs
        running_return += reward
        last_return = torch.where(ended, running_return, last_return)
        running_return = running_return.masked_fill(ended, 0.0)

        for _ in range(args.gradient_steps if is_learning else 0):
            sample = torch.randint(min(iteration, rows) * args.num_envs, (args.batch_size,), device=envs.device)
            batch = {name: x.flatten(0, 1)[sample] for name, x in replay.items()}
            with torch.no_grad():
                next_q = target_critic(batch["next_obs"], target_actor(batch["next_obs"]))
                target = batch["reward"] + args.gamma * (1.0 - batch["terminated"]) * next_q
            critic_loss = (critic(batch["obs"], batch["action"]) - target).square().mean()
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
            actor_loss = -critic(batch["obs"], actor(batch["obs"])).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()  # the critic clears the gradients that this adds to it before its next step
            actor_optimizer.step()
            for target_net, net in ((target_actor, actor), (target_critic, critic)):
                update_target(target_net, net, args.tau)

        steps = iteration * args.num_envs
        rate = steps / (time.perf_counter() - start)
        if iteration % max(1, iterations // 100) == 0 or iteration == iterations:
            metrics = {"charts/episodic_return": last_return.mean(), "charts/SPS": rate}
            for name, value in metrics.items():
                writer.add_scalar(name, value, steps)
        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            print(f"{steps:>12,} steps  {rate:>12,.0f}/s  last return {last_return.mean():.1f}", flush=True)
            if args.capture_video:
                record_video(actor, args, run_name, steps)
    writer.close()
    envs.close()
    return float(last_return.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
