"""Playing a policy without learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.errors import GpuvecError
from gpuvec.learners.networks import ActorCritic
from gpuvec.learners.ppo_args import Args

STEPS_BETWEEN_LOOKS = 32  # to ask a GPU whether all are done costs more than a few steps
STEP_LIMIT = 100_000  # for environments that have none of their own


@torch.no_grad()
def evaluate(
    network: ActorCritic,
    env: str,
    *,
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    greedy: bool = True,
    params: Mapping[str, Any] | None = None,
) -> Tensor:
    """The undiscounted returns of `episodes` episodes, (episodes,) float64 on the CPU.

    Each environment plays one episode, its first: to take whichever episodes end first would favour short ones.

    Args:
        network: the policy; it is used where it is, and must lie on `device`.
        env: id of a gpuvec environment.
        episodes: how many.
        seed: of the environments, and of the actions unless `greedy`.
        device: "auto", "cpu", "cuda" or "cuda:1".
        greedy: take the likeliest action instead of drawing one.
        params: the environment's own parameters.

    Raises:
        GpuvecError: an episode took more than 100,000 steps.
    """
    envs = gym.make_vec(env, num_envs=episodes, device=device, output="torch", buffers=1, **(params or {}))
    try:
        obs, _ = envs.reset(seed=seed)
        generator = torch.Generator(obs.device).manual_seed(seed)
        returns = torch.zeros(episodes, dtype=torch.float64, device=obs.device)
        playing = torch.ones(episodes, dtype=torch.bool, device=obs.device)
        for step in range(STEP_LIMIT):
            if step % STEPS_BETWEEN_LOOKS == 0 and not playing.any():
                return returns.cpu()
            policy = network.policy(obs)
            action = policy.mode() if greedy else policy.sample(generator)
            obs, reward, terminated, truncated, _ = envs.step(network.control(action))
            returns += reward * playing
            playing &= ~(terminated | truncated)
    finally:
        envs.close()
    raise GpuvecError(
        f"{int(playing.sum())} of {episodes} episodes of {env} did not end in {STEP_LIMIT} steps: "
        "it has no step limit; give it one with params max_episode_steps."
    )


def policy_of(checkpoint: Mapping[str, Any], device: str) -> tuple[Args, ActorCritic]:
    """The settings and the networks of a checkpoint, the networks on `device`."""
    args = Args(**checkpoint["args"])
    params: dict[str, Any] = dict(args.params)
    env = gym.make_vec(args.env, num_envs=1, device=device, **params)
    network = ActorCritic(env.single_observation_space, env.single_action_space, args.hidden, torch.Generator())
    env.close()
    network.load_state_dict(checkpoint["network"])
    return args, network.to(device)
