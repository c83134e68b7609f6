"""A network of one's own in a game of one's own: PPO with convolutions, in one file.

    python examples/own_network.py --total-steps 200000

A walker on a board looks for a goal. Two methods make a module a network: `policy`, which gives logits, and `value`. This one
draws the board from the four numbers that it observes, and looks at it with a small convolutional network.
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
    """Where the walker and the goal are."""

    x: int
    y: int
    goal_x: int
    goal_y: int


class NoParams(NamedTuple):
    """There are none."""


def reset(key: Key, p: NoParams) -> Board:
    """Both anywhere."""
    return Board(randint(key, 0, 0, SIDE), randint(key, 1, 0, SIDE), randint(key, 2, 0, SIDE), randint(key, 3, 0, SIDE))


def step(s: Board, action: int, key: Key, p: NoParams) -> tuple[Board, float, bool]:
    """Left, right, up, down; each costs, and the goal pays."""
    x = s.x + (1 if action == 1 else -1 if action == 0 else 0)
    y = s.y + (1 if action == 3 else -1 if action == 2 else 0)
    x, y = min(max(x, 0), SIDE - 1), min(max(y, 0), SIDE - 1)
    found = x == s.goal_x and y == s.goal_y
    return Board(x, y, s.goal_x, s.goal_y), 1.0 if found else -0.05, found


FIND = SingleAgentEnv(
    state=Board,
    params=NoParams(),
    reset=reset,
    step=step,
    observe=lambda s, p: (float(s.x), float(s.y), float(s.goal_x), float(s.goal_y)),
    spaces=lambda p: (Box(0.0, SIDE - 1.0, (4,)), Discrete(4)),
    max_episode_steps=50,
)
register("examples/Find-v0", FIND)


class Convolutions(nn.Module):
    """Two planes, with a one where the walker is and where the goal is; what is seen in them serves policy and value."""

    def __init__(self, observations: Any, actions: Any) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(SIDE, dtype=torch.float32), persistent=False)
        self.seen = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(16 * SIDE * SIDE, 64), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(64, int(actions.n)), nn.Linear(64, 1)

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (..., 4) and values (...,): computed at once where a learner needs both, which is optional."""
        x, y = (obs.reshape(-1, 2, 2)[..., k, None] == self.places for k in (0, 1))
        planes = (y[..., :, None] & x[..., None, :]).float()  # (B, 2, SIDE, SIDE)
        seen = self.seen(planes).view(*obs.shape[:-1], -1)
        return self.actor(seen), self.critic(seen).squeeze(-1)

    def policy(self, obs: Tensor) -> Tensor:
        """Logits."""
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """What the policy will gain."""
        return self.both(obs)[1]


@dataclass
class Args:
    """Settings."""

    seed: int = 1
    device: str = "auto"
    num_envs: int = 128
    num_steps: int = 32
    total_steps: int = 200_000
    learning_rate: float = 2.5e-3


def main(args: Args) -> float:
    """Trains, prints how it goes, and returns the mean return of 100 episodes."""
    settings = ppo.PPOArgs(
        env="examples/Find-v0", seed=args.seed, device=args.device, num_envs=args.num_envs, num_steps=args.num_steps,
        total_steps=args.total_steps, learning_rate=args.learning_rate,
    )  # fmt: skip

    def show(learner: Any, metrics: dict[str, float]) -> None:
        if learner.iteration % 10 == 0:
            print(
                f"{metrics['steps']:>10,.0f} steps  return {metrics['return']:6.2f}  length {metrics['length']:5.1f}",
                flush=True,
            )

    result = ppo.train(settings, show, body=Convolutions)
    returns = evaluate(result.network, settings.env, device=args.device)
    print(f"mean return {returns.mean():.2f} over 100 episodes after {result.history[-1]['steps']:,.0f} steps")
    return float(returns.mean())


if __name__ == "__main__":
    main(tyro.cli(Args))
