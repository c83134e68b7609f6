"""Ten trainings of each game with a grid, a group of agents or turns, and the scores of the final policies.

As in `solve`, each training has its own process. A score is a mean over 1,000 episodes in which the policy takes its most
probable actions: the return, with many agents averaged over them. In ConnectFour one policy learns by playing both sides. Its
score is the return against random moves, the share of games that it wins minus the share that it loses, and it moves first in
half of the games. Both sides of a training have the return 0 together, so that the curve shows scores during the training.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.solve import Goal, parse_arguments, run_trainings
from benchmarks.tools.measure import Figures

if TYPE_CHECKING:
    from gpuvec.learners.evaluation.players import Player


def make_match(players: list[Player]) -> Player:
    """Returns a player in which each agent is played by another one.

    Args:
        players: that of each agent; all get the observations of all agents.
    """
    import torch

    def player(envs: Any) -> Any:
        acts = [one(envs) for one in players]

        def act(*inputs: Any) -> Any:
            return torch.stack([act(*inputs)[:, agent] for agent, act in enumerate(acts)], 1)

        return act

    return player


def score_against_random(networks: Mapping[str, Any], env: str, episodes: int, seed: int, device: str) -> float:
    """Returns the mean return of the most probable actions against random ones, in a game of two.

    Args:
        networks: {"all": the policy}.
        env: id of the environment.
        episodes: how many are played, half of them by each side.
        seed: of the environments and of the random actions.
        device: "cpu" or "cuda:<index>".
    """
    from gpuvec.learners.evaluation.evaluate import run_episodes
    from gpuvec.learners.evaluation.players import at_random, policy

    total = 0.0
    for side in range(2):
        players = [at_random(seed + side), at_random(seed + side)]
        players[side] = policy(networks["all"])
        results = run_episodes(env, make_match(players), episodes=episodes // 2, seed=seed + side, device=device)
        total += float(results.returns[:, side].mean())
    return total / 2


GOALS = (
    Goal("Breakout-v0", "ppo", 30.0),
    Goal("SimpleSpread-v0", "ppo", -12.0),
    Goal("SimpleSpeakerListener-v0", "ppo", -12.0),
    Goal("ConnectFour-v0", "ppo", 0.9, score_against_random, num_scores=20),
)
CURVES = Path(__file__).resolve().parents[1] / "results" / "game_training.csv"


def main() -> None:
    """Trains for all goals."""
    arguments = parse_arguments(__doc__, CURVES)
    run_trainings(Figures("game_training", arguments.json), GOALS, arguments)


if __name__ == "__main__":
    main()
