"""Ten trainings of each game with a grid, a group of agents or turns, and the scores of the final policies.

As in `solve`, each training has its own process. A score is a mean over 1,000 episodes in which the policy takes its most
probable actions: the return, with many agents averaged over them. In ConnectFour one policy learns by playing both sides, and
in half of the games against an opponent that wins or blocks at once. Its score is the return against this opponent, the share
of games that it wins minus the share that it loses, and it moves first in half of the games; random moves are no opponent,
because one that only wins or blocks scores 0.9 against them. Both sides of a training have the return 0 together, so that the
curve shows scores during the training. In EpidemicEconomy the states and the planner have a policy each, and the score is the
return of the planner, which weighs the indices of all states and pays the subsidies. Both draw their actions: the most probable
actions of states that have hardly learned keep arbitrary levels for the whole episode, which score more than the levels that
they draw. Subsidies raise the return of the states and lower that of the planner, so that the return of the states falls when
the planner learns. The metrics have the returns of both for all pairs of trained and random policies. In Predators wolves and
sheep have a policy each, and the score is the number of sheep that trained wolves eat in 100 steps of a living wolf, among
sheep that move at random, in the first 25 steps of an episode: later their numbers have changed so that a wolf eats about as
much as it uses, however well it hunts. The metrics are the same for all pairs of trained and random wolves and sheep. Trained
sheep evade if random wolves eat fewer of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.solve import Goal, Match, Score, parse_arguments, run_trainings, score_return
from benchmarks.tools.measure import Figures

if TYPE_CHECKING:
    from gpuvec.learners.evaluation.evaluate import EpisodeResults
    from gpuvec.learners.evaluation.players import Player


def score_both_sides(player: Player, make_opponent: Callable[[int], Player], match: Match) -> float:
    """Returns the mean return of a player in a game of two.

    Args:
        player: plays either side in half of the episodes.
        make_opponent: returns the opponent for a seed.
        match: the episodes; its seed is also that of the opponent.
    """
    from gpuvec.learners.evaluation.players import by_agent

    total = 0.0
    for side in range(2):
        seed = match.seed + side
        players = [player, make_opponent(seed)] if side == 0 else [make_opponent(seed), player]
        results = match._replace(episodes=match.episodes // 2, seed=seed).play(by_agent(players))
        total += float(results.returns[:, side].mean())
    return total / 2


def score_against_opponents(networks: Mapping[str, Any], match: Match) -> Score:
    """Returns the mean return of the most probable actions against an opponent that wins or blocks at once.

    The metrics have the return against random moves, too.

    Args:
        networks: {"all": the policy}.
        match: the episodes; its seed is also that of the opponents.
    """
    from gpuvec.learners.evaluation.players import at_random, policy, wins_or_blocks

    player = policy(networks["all"])
    against_random = score_both_sides(player, at_random, match)
    return Score(score_both_sides(player, wins_or_blocks, match), {"against_random": against_random})


def play_pairs(networks: Mapping[str, Any], match: Match) -> Iterator[tuple[str, EpisodeResults]]:
    """Yields the results of all pairs of trained and random policies of two roles, which draw their actions.

    Args:
        networks: {role: its policy}.
        match: the episodes; its seed is also that of the actions.

    Yields:
        The name of a pair, such as trained_wolves_random_sheep, and its results.
    """
    from gpuvec.learners.evaluation.players import at_random, by_role, policy
    from gpuvec.learners.seeds import ACTIONS, stream_seed

    seeds = {role: stream_seed(match.seed, ACTIONS, role) for role in networks}
    players = {
        "trained": {role: policy(network, greedy=False, seed=seeds[role]) for role, network in networks.items()},
        "random": {role: at_random(seed) for role, seed in seeds.items()},
    }
    for kinds in itertools.product(players, repeat=len(networks)):
        pair = dict(zip(networks, kinds, strict=True))
        name = "_".join(f"{kind}_{role}" for role, kind in pair.items())
        yield name, match.play(by_role({role: players[kind][role] for role, kind in pair.items()}))


# With these parameters the return of a wolf is the number of sheep that it eats.
HUNT = {"max_episode_steps": 25, "food_reward": 1.0, "death_penalty": 0.0}


def hunt_rate(results: EpisodeResults) -> float:
    """Returns the sheep that wolves ate in 100 steps of a living wolf, in episodes with the parameters `HUNT`."""
    agents = results.roles["wolves"]
    return 100.0 * float(results.returns[:, agents].sum() / results.lengths[:, agents].sum())


def score_hunt(networks: Mapping[str, Any], match: Match) -> Score:
    """Returns the sheep that trained wolves eat in 100 steps of a living wolf among random sheep, with metrics of all pairs.

    Args:
        networks: the policies {"wolves": ..., "sheep": ...}.
        match: the episodes; its seed is also that of the actions.
    """
    pairs = play_pairs(networks, match._replace(params={**match.params, **HUNT}))
    rates = {name: hunt_rate(results) for name, results in pairs}
    return Score(rates["trained_wolves_random_sheep"], rates)


def compare_returns(networks: Mapping[str, Any], match: Match) -> dict[str, float]:
    """Returns the mean return of each role for all pairs of trained and random policies of two roles.

    Args:
        networks: {role: its policy}.
        match: the episodes; its seed is also that of the actions.
    """
    return {
        f"{name}_return_of_{role}": float(results.returns[:, results.roles[role]].mean())
        for name, results in play_pairs(networks, match)
        for role in networks
    }


# Each bar is above what `baselines` measures of play without learning: the paddle below the ball 84, agents that go to
# landmarks of their own -10.8, a speaker that says the goal -8.2, an opponent that wins or blocks 0, wolves that always do
# the same 7.6, constant levels in RICE-N 6.17 with negotiation as without it, and constant levels in EpidemicEconomy 433.
GOALS = (
    Goal("Breakout-v0", "ppo", 85.0),
    Goal("SimpleSpread-v0", "ppo", -10.0),
    Goal("SimpleSpeakerListener-v0", "ppo", -8.2),
    Goal("ConnectFour-v0", "ppo", 0.5, score_against_opponents, num_scores=10, opponent="win_or_block"),
    Goal("Predators-v0", "ppo", 9.0, score_hunt, num_scores=10),
    Goal("RICE-N-v0", "ppo", 6.2),
    Goal("RICE-N-v0", "ppo", 6.2, params={"negotiation": True}),
    Goal(
        "EpidemicEconomy-v0",
        "ppo",
        434.0,
        partial(score_return, role="planner", greedy=False),
        num_scores=10,
        compare=compare_returns,
    ),
)
CURVES = Path(__file__).resolve().parents[1] / "results" / "game_training.csv"


def main() -> None:
    """Trains for all goals."""
    arguments = parse_arguments(__doc__, CURVES)
    run_trainings(Figures("game_training", arguments.json), GOALS, arguments)


if __name__ == "__main__":
    main()
