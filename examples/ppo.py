"""PPO for discrete actions in one file, in the style of CleanRL: `gymnasium.make_vec` and torch.

    python examples/ppo.py --env-id gpuvec/CartPole-v1 --num-envs 4096 --device cuda

Proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford and Klimov, 2017) with generalised advantage estimation. All
tensors are on the device of the environments. Letters: E environments, T steps, D features.
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

    env_id: str = "gpuvec/CartPole-v1"
    device: str = "auto"
    """auto, cpu or cuda; auto is a GPU if there is one."""
    seed: int = 1
    total_steps: int = 500_000
    """Total number of environment steps."""
    num_envs: int = 128
    num_steps: int = 32
    """Steps of each environment per iteration."""
    update_epochs: int = 4
    num_minibatches: int = 4
    learning_rate: float = 2.5e-3
    """Step size of Adam in the first iteration; it decreases linearly to 0."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
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


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Returns a network with two hidden layers of tanh units and orthogonal weights.

    Args:
        inputs: of the first layer.
        outputs: of the last layer.
        gain: of the last layer.
    """
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    """A policy and a value function; `envs` has the spaces."""

    def __init__(self, envs: gymnasium.vector.VectorEnv) -> None:
        super().__init__()
        features = envs.single_observation_space.shape[0]
        self.actor = mlp(features, int(envs.single_action_space.n), 0.01)
        self.critic = mlp(features, 1, 1.0)

    def policy(self, obs: Tensor) -> Categorical:
        """Returns the distribution of actions for `obs`, (N, D)."""
        return Categorical(logits=self.actor(obs), validate_args=False)

    def value(self, obs: Tensor) -> Tensor:
        """Returns the values, (N,), of `obs`, (N, D)."""
        return self.critic(obs).squeeze(-1)

    def act(self, obs: Tensor) -> Tensor:
        """Returns the likeliest actions, (N,), for `obs`, (N, D)."""
        return self.policy(obs).probs.argmax(-1)


def estimate_advantages(rollout: dict[str, Tensor], flags: dict[str, Tensor], args: Args) -> None:
    """Writes generalised advantage estimates to the rollout.

    Args:
        rollout: {name: (T, E, ...)}.
        flags: {"terminated": (T, E) bool, "ended": (T, E) bool}.
        args: the settings.
    """
    delta = rollout["reward"] + args.gamma * rollout["next_value"] * ~flags["terminated"] - rollout["value"]
    advantage = torch.zeros_like(delta[0])
    for t in reversed(range(args.num_steps)):
        advantage = delta[t] + args.gamma * args.gae_lambda * ~flags["ended"][t] * advantage
        rollout["advantage"][t] = advantage


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
    """Writes a video of an episode in which `act` chooses the actions, (1,), for the observations, (1, D)."""
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
    agent = Agent(envs).to(envs.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shape = (args.num_steps, args.num_envs)
    rollout = {k: torch.zeros(shape, device=envs.device) for k in ("log_prob", "reward", "value", "next_value", "advantage")}
    rollout["obs"] = torch.zeros((*shape, *envs.single_observation_space.shape), device=envs.device)
    rollout["action"] = torch.zeros(shape, dtype=torch.int64, device=envs.device)
    flags = {k: torch.zeros(shape, dtype=torch.bool, device=envs.device) for k in ("terminated", "ended")}
    running_return, last_return = torch.zeros(args.num_envs, device=envs.device), torch.zeros(args.num_envs, device=envs.device)

    run_name = f"{args.env_id.rpartition('/')[2]}__ppo__{args.seed}__{int(time.time())}"
    writer = start_log(args, run_name)
    if args.capture_video:
        record_video(agent.act, args, run_name, 0)

    obs, _ = envs.reset(seed=args.seed)
    iterations, start = max(1, args.total_steps // (args.num_steps * args.num_envs)), time.perf_counter()
    for iteration in range(1, iterations + 1):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - (iteration - 1) / iterations)

        with torch.no_grad():
            for t in range(args.num_steps):
                policy = agent.policy(obs)
                action = policy.sample()
                step = {"obs": obs, "action": action, "log_prob": policy.log_prob(action), "value": agent.value(obs)}
                obs, reward, terminated, truncated, infos = envs.step(action)
                ended = terminated | truncated
                # If an episode ended, `obs` is the first observation of the next one, and `final_obs` the last of this one.
                step["next_value"] = agent.value(torch.where(ended[:, None], infos["final_obs"], obs))
                for name, value in (step | {"reward": reward}).items():
                    rollout[name][t] = value
                flags["terminated"][t], flags["ended"][t] = terminated, ended
                running_return += reward
                last_return = torch.where(ended, running_return, last_return)
                running_return = running_return.masked_fill(ended, 0.0)

            estimate_advantages(rollout, flags, args)

        batch = {name: x.flatten(0, 1) for name, x in rollout.items()}
        target = batch["advantage"] + batch["value"]
        for _ in range(args.update_epochs):
            for rows in torch.randperm(len(target), device=envs.device).chunk(args.num_minibatches):
                policy = agent.policy(batch["obs"][rows])
                ratio = (policy.log_prob(batch["action"][rows]) - batch["log_prob"][rows]).exp()
                advantage = batch["advantage"][rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                surrogate = torch.min(ratio * advantage, ratio.clamp(1.0 - args.clip, 1.0 + args.clip) * advantage).mean()
                value_loss = 0.5 * (agent.value(batch["obs"][rows]) - target[rows]).square().mean()
                loss = args.vf_coef * value_loss - surrogate - args.ent_coef * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        steps = iteration * args.num_steps * args.num_envs
        rate = steps / (time.perf_counter() - start)
        if iteration % max(1, iterations // 100) == 0 or iteration == iterations:
            metrics = {
                "charts/episodic_return": last_return.mean(),
                "charts/SPS": rate,
                "losses/value_loss": value_loss,
                "losses/entropy": policy.entropy().mean(),
            }
            for name, value in metrics.items():
                writer.add_scalar(name, value, steps)
        if iteration % max(1, iterations // 10) == 0 or iteration == iterations:
            print(f"{steps:>12,} steps  {rate:>12,.0f}/s  last return {last_return.mean():.1f}", flush=True)
            if args.capture_video:
                record_video(agent.act, args, run_name, steps)
    writer.close()
    envs.close()
    return float(last_return.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
