"""Ten trainings of each game with a grid, a group of agents or turns, and the scores of the final policies.

As in `solve`, each training has its own process. A score is a mean over 1,000 episodes in which the policy takes its most
probable actions: the return, with many agents averaged over them. In ConnectFour one policy learns by playing both sides. Its
score is the return against random moves, the share of games that it wins minus the share that it loses, and it moves first in
half of the games. Both sides of a training have the return 0 together, so that the curve shows scores during the training. In
EpidemicEconomy the states and the planner have a policy each, and the score is the return of the planner, which weighs the
indices of all states and pays the subsidies. In Predators it is the return of trained wolves among sheep that move at random:
against trained sheep wolves starve.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.solve import Goal, Match, Score, parse_arguments, run_trainings, score_return
from benchmarks.tools.measure import Figures

if TYPE_CHECKING:
    from gpuvec.learners.evaluation.players import Player


def combine_players(players: list[Player]) -> Player:
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


def score_against_random(networks: Mapping[str, Any], match: Match) -> Score:
    """Returns the mean return of the most probable actions against random ones, in a game of two.

    Args:
        networks: {"all": the policy}.
        match: the episodes, half of them for each side; its seed is also that of the random actions.
    """
    from gpuvec.learners.evaluation.players import at_random, policy

    total = 0.0
    for side in range(2):
        seed = match.seed + side
        players = [at_random(seed), at_random(seed)]
        players[side] = policy(networks["all"])
        results = match._replace(episodes=match.episodes // 2, seed=seed).play(combine_players(players))
        total += float(results.returns[:, side].mean())
    return Score(total / 2)


def score_hunt(networks: Mapping[str, Any], match: Match) -> Score:
    """Returns the mean return of trained wolves among sheep that move at random, and those of other pairs as metrics.

    Args:
        networks: {"all": the policy}.
        match: the episodes; its seed is also that of the random actions.
    """
    from gpuvec.learners.evaluation.players import at_random, by_role, policy

    players = {"trained": policy(networks["all"], greedy=False, seed=match.seed), "random": at_random(match.seed)}
    returns = {}
    for wolves, sheep in (("trained", "random"), ("random", "trained"), ("random", "random")):
        results = match.play(by_role({"wolves": players[wolves], "sheep": players[sheep]}))
        for role, player, others in (("wolves", wolves, sheep), ("sheep", sheep, wolves)):
            returns[f"{player}_{role}_with_{others}"] = float(results.returns[:, results.roles[role]].mean())
    return Score(returns["trained_wolves_with_random"], returns)


GOALS = (
    Goal("Breakout-v0", "ppo", 30.0),
    Goal("SimpleSpread-v0", "ppo", -12.0),
    Goal("SimpleSpeakerListener-v0", "ppo", -12.0),
    Goal("ConnectFour-v0", "ppo", 0.9, score_against_random, num_scores=20),
    Goal("Predators-v0", "ppo", 5.0, score_hunt, num_scores=10),
    Goal("RICE-N-v0", "ppo", 6.1),
    Goal("RICE-N-v0", "ppo", 5.7, params={"negotiation": True}),
    Goal("EpidemicEconomy-v0", "ppo", 390.0, partial(score_return, role="planner"), num_scores=20),
)
CURVES = Path(__file__).resolve().parents[1] / "results" / "game_training.csv"


def main() -> None:
    """Trains for all goals."""
    arguments = parse_arguments(__doc__, CURVES)
    run_trainings(Figures("game_training", arguments.json), GOALS, arguments)


if __name__ == "__main__":
    main()
