"""A custom network in a custom environment: PPO with convolutions, in one file.

    python examples/custom_network.py --total-steps 200000

A walker on a board looks for a goal. A network is a module with two methods: `policy`, which returns logits, and `value`. This
one makes an image of the board from the four numbers of an observation, and processes it with a small convolutional network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import tyro
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from gpuvec import Key, SingleAgentEnv, randint, register
from gpuvec.learners import ppo
from gpuvec.learners.evaluation.evaluate import evaluate

SIDE = 8  # of the board


class Board(NamedTuple):
    """The positions of the walker and of the goal."""

    x: int
    y: int
    goal_x: int
    goal_y: int


class NoParams(NamedTuple):
    """The environment has no parameters."""


def reset(key: Key, p: NoParams) -> Board:
    """Returns random positions; `key` is that of the random numbers, `p` the parameters."""
    return Board(randint(key, 0, 0, SIDE), randint(key, 1, 0, SIDE), randint(key, 2, 0, SIDE), randint(key, 3, 0, SIDE))


def step(s: Board, action: int, key: Key, p: NoParams) -> tuple[Board, float, bool]:
    """Returns the next state, the reward and whether the walker reached the goal; each step before that costs 0.05.

    Args:
        s: the state.
        action: 0 to 3 for left, right, up and down.
        key: of the random numbers.
        p: the parameters.
    """
    x = s.x + (1 if action == 1 else -1 if action == 0 else 0)
    y = s.y + (1 if action == 3 else -1 if action == 2 else 0)
    x, y = min(max(x, 0), SIDE - 1), min(max(y, 0), SIDE - 1)
    is_at_goal = x == s.goal_x and y == s.goal_y
    return Board(x, y, s.goal_x, s.goal_y), 1.0 if is_at_goal else -0.05, is_at_goal


FIND_GOAL = SingleAgentEnv(
    state=Board,
    params=NoParams(),
    reset=reset,
    step=step,
    observe=lambda s, p: (float(s.x), float(s.y), float(s.goal_x), float(s.goal_y)),
    spaces=lambda p: (Box(0.0, SIDE - 1.0, (4,)), Discrete(4)),
    max_episode_steps=50,
)
register("examples/FindGoal-v0", FIND_GOAL)


class Convolutions(nn.Module):
    """A convolutional network of two planes, with a one at the walker and at the goal, which policy and value share.

    Args:
        observations: the space of observations.
        actions: the space of actions.
    """

    def __init__(self, observations: Any, actions: Any) -> None:
        super().__init__()
        self.register_buffer("positions", torch.arange(SIDE, dtype=torch.float32), persistent=False)
        self.body = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * SIDE * SIDE, 64), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(64, int(actions.n)), nn.Linear(64, 1)

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits (..., 4) and values (...,) of `obs`, (..., 4).

        The method is optional: learners that need both call it, so that the body runs once.
        """
        x, y = (obs.reshape(-1, 2, 2)[..., k, None] == self.positions for k in (0, 1))
        planes = (y[..., :, None] & x[..., None, :]).float()  # (B, 2, SIDE, SIDE)
        hidden = self.body(planes).view(*obs.shape[:-1], -1)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)

    def policy(self, obs: Tensor) -> Tensor:
        """Returns logits (..., 4) of `obs`, (..., 4)."""
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """Returns values (...,) of `obs`, (..., 4)."""
        return self.both(obs)[1]


@dataclass
class Args:
    """The settings; each is an option of the command line."""

    seed: int = 1
    device: str = "auto"
    num_envs: int = 128
    num_steps: int = 32
    total_steps: int = 200_000
    learning_rate: float = 2.5e-3


def main(args: Args) -> float:
    """Trains with the settings `args` and prints the progress; returns the mean return of 100 episodes."""
    settings = ppo.PPOArgs(
        env="examples/FindGoal-v0", seed=args.seed, device=args.device, num_envs=args.num_envs, num_steps=args.num_steps,
        total_steps=args.total_steps, learning_rate=args.learning_rate,
    )  # fmt: skip

    def print_progress(learner: Any, metrics: dict[str, float]) -> None:
        if learner.iteration % 10 == 0:
            print(
                f"{metrics['steps']:>10,.0f} steps  return {metrics['return']:6.2f}  length {metrics['length']:5.1f}",
                flush=True,
            )

    result = ppo.train(settings, print_progress, body=Convolutions)
    returns = evaluate(result.network, settings.env, device=args.device)
    print(f"mean return {returns.mean():.2f} over 100 episodes after {result.history[-1]['steps']:,.0f} steps")
    return float(returns.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
