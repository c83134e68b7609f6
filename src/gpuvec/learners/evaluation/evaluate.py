"""Playing without learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.episode import STEP_LIMIT, make_endless_error
from gpuvec.errors import StateError
from gpuvec.learners.algorithms import args_from_dict, policy_class
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluation.players import Player, PolicyNetwork, policy
from gpuvec.learners.networks.actor_critic import Body
from gpuvec.learners.runs.checkpoint_schema import require_network_size, require_trusted
from gpuvec.vector.spaces import space_of_one_agent

STEPS_BETWEEN_LOOKS = 32  # to ask a GPU whether all are done costs more than a few steps


class EpisodeResults(NamedTuple):
    """What came of E episodes; tensors on the CPU."""

    returns: Tensor  # (E,) float64, undiscounted; of many agents (E, A), while they were in the game
    left: Tensor  # likewise bool: whether the agent left the game; of one agent, whether the episode was terminated
    roles: dict[str, Any]  # where those of a role are on the axis of agents


@torch.no_grad()
def play(
    env: str,
    player: Player,
    *,
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    params: Mapping[str, Any] | None = None,
) -> EpisodeResults:
    """Lets each of `episodes` environments play one episode, its first: the first to end would more often be short ones.

    Args:
        env: id of a gpuvec environment.
        player: who plays; of many agents, all of them.
        episodes: how many.
        seed: of the environments.
        device: "auto", "cpu", "cuda" or "cuda:1".
        params: the environment's own parameters.

    Raises:
        GpuvecError: an episode took more than 100,000 steps.
    """
    envs = make_env(env, episodes, params or {}, device=device, output="torch", buffers=1)
    try:
        obs, _ = envs.reset(seed=seed)
        many = is_multi_agent(envs)
        shape = obs.shape[:-1]
        act = player(envs)
        returns = torch.zeros(shape, dtype=torch.float64, device=obs.device)
        left = torch.zeros(shape, dtype=torch.bool, device=obs.device)
        playing = torch.ones((episodes, 1) if many else (episodes,), dtype=torch.bool, device=obs.device)
        for step in range(STEP_LIMIT):
            if step % STEPS_BETWEEN_LOOKS == 0 and not playing.any():
                return EpisodeResults(returns.cpu(), left.cpu(), envs.roles)
            obs, reward, terminated, truncated, info = envs.step(act(obs))
            returns += reward.where(playing & info["agent_mask"] if many else playing, 0.0)
            left |= playing & (info["agent_terminated"] if many else terminated)
            playing &= ~(terminated | truncated).view_as(playing)
    finally:
        envs.close()
    raise make_endless_error(int(playing.sum()), episodes)


def evaluate(
    network: PolicyNetwork,
    env: str,
    *,
    episodes: int = 100,
    seed: int = 0,
    device: str = "auto",
    greedy: bool = True,
    params: Mapping[str, Any] | None = None,
) -> Tensor:
    """The undiscounted returns of `episodes` episodes, float64 on the CPU: (episodes,), of many agents (episodes, A).

    Args:
        network: the policy of all agents; it is used where it is, and must lie on `device`.
        env, episodes, device, params: as in `play`.
        seed: of the environments, and of the actions unless `greedy`.
        greedy: take the likeliest action instead of drawing one.

    Raises:
        GpuvecError: an episode took more than 100,000 steps.
    """
    player = policy(network, greedy=greedy, seed=seed)
    return play(env, player, episodes=episodes, seed=seed, device=device, params=params).returns


def is_multi_agent(env: Any) -> bool:
    """Whether observations are (E, A, D)."""
    return len(env.single_observation_space.shape) == 2


def load_policy(
    checkpoint: Mapping[str, Any], device: str, body: Body | None = None, role: str | None = None
) -> tuple[TrainingArgs, Any]:
    """The settings and the networks of a policy in a checkpoint, the networks, which are `PolicyNetwork`, on `device`.

    Args:
        checkpoint: as `checkpoint.load` gives it.
        device: where to play.
        body: what made the network, if it was one's own.
        role: whose, if there are several.

    Raises:
        StateError: no policy of that role learned, or parameters of another network.
        CheckpointError: the environment is in a module that is not imported, or settings need more than the file holds.
    """
    learned = checkpoint["args"]
    role = next(iter(learned)) if role is None and len(learned) == 1 else role
    if role not in learned:
        raise StateError(f"the checkpoint has policies for {', '.join(learned)}: name one of these roles, not {role!r}.")
    args = args_from_dict(learned[role])
    require_trusted(args.env)
    if body is None:
        require_network_size(args, checkpoint["policies"][role]["network"])
    network = policy_class(args).networks(args, *agent_spaces(args, device), *([] if body is None else [body]))
    try:
        network.load_state_dict(checkpoint["policies"][role]["network"])
    except RuntimeError as error:
        raise StateError(f"the checkpoint is of another network: give the body that it was trained with. {error}") from error
    return args, network.to(device)


def agent_spaces(args: TrainingArgs, device: str) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """What an agent of the settings' environment observes and does."""
    env = make_env(args.env, 1, args.params, device=device, output="torch")
    try:
        observation, action = env.single_observation_space, env.single_action_space
        return (space_of_one_agent(observation), space_of_one_agent(action)) if is_multi_agent(env) else (observation, action)
    finally:
        env.close()
