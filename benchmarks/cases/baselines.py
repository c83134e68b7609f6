"""Scores of play without learning in the games: random, constant, a fixed schedule or simple rules, beside trained policies.

A score is that of `game_training`, or for Tag what the taggers achieve against runners that move at random. Each play has five
seeds, of the episodes and of what is drawn, and the interval is the 95 % confidence interval over them. Constants and schedules
are searched, and a search draws nothing: in RICE-N all levels of savings and mitigation, then one kind of level after the
other, until none of them improves the return; in EpidemicEconomy all levels of closure and subsidies, then a level of closure
for each four weeks, one after the other, until none improves the planner's return. Scores are written to a CSV file, from which
the documentation makes its tables.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tools.policy_card import interval_over_seeds

from benchmarks.cases import game_training, tag_training
from benchmarks.cases.solve import Match
from benchmarks.tools.measure import Figures, make_parser

if TYPE_CHECKING:
    from torch import Tensor

    from gpuvec.learners.evaluation.players import Player

RESULTS = Path(__file__).resolve().parents[1] / "results" / "baselines.csv"
FIRST_SEED = 5000
NUM_SEEDS = 5
Scored = Callable[["Player", Match], float]
"""Returns the score of a player."""


class Play(NamedTuple):
    """A way to play a game.

    Attributes:
        name: of the play.
        make_player: returns the player for a seed of what it draws.
        details: what a search found.
    """

    name: str
    make_player: Callable[[int], Player]
    details: str = ""


class Game(NamedTuple):
    """A game, and the ways to play it.

    Attributes:
        task: the environment, with the parameters that are not its defaults and the opponent, as in `Goal.task`.
        params: these parameters.
        measure: what the score is.
        score: returns the score of a player.
        plays: yields the ways to play, for the device on which searches run.
        trained: the name of the policy that comes with gpuvec, if there is one.
    """

    task: str
    measure: str
    score: Scored
    plays: Callable[[str], Iterator[Play]]
    params: dict[str, Any] = {}  # noqa: RUF012  # is not mutated
    trained: str | None = None


def constant(action: Any) -> Player:
    """Returns a player whose agents take the same action in each step.

    Args:
        action: of an agent; numbers, or a tensor that broadcasts to the actions of all agents of all environments, or
            {role: action} if roles have spaces of their own.
    """
    import torch

    def player(envs: Any) -> Any:
        def act(obs: Any, action_mask: Any = None) -> Any:
            if isinstance(obs, dict):
                return {role: expand(action[role], x) for role, x in obs.items()}
            return expand(action, obs)

        def expand(value: Any, obs: Tensor) -> Tensor:
            value = torch.as_tensor(value, device=obs.device)
            leading = obs.shape[:2] if envs.unwrapped.is_multi_agent else obs.shape[:1]
            components = value.shape[len(leading) :] if value.dim() > len(leading) else value.shape
            return value.expand(*leading, *components)

        return act

    return player


def rule(function: Callable[..., Tensor]) -> Callable[[int], Player]:
    """Returns a player that acts by a function of the observations, and draws nothing.

    Args:
        function: returns actions for observations; with action masks the mask is its second argument.
    """
    return lambda seed: lambda envs: function


def random_play(seed: int) -> Player:
    """Returns a player that moves at random."""
    from gpuvec.learners.evaluation.players import at_random

    return at_random(seed)


def mean_return(player: Player, match: Match, role: str | None = None) -> float:
    """Returns the mean return of an agent, or of an agent of `role`."""
    results = match.play(player)
    return float((results.returns if role is None else results.returns[:, results.roles[role]]).mean())


def best_action(score: Scored, match: Match, actions: Sequence[int]) -> int:
    """Returns the action that has the best score if it is taken in each step."""
    return max(actions, key=lambda action: score(constant(action), match))


def constants(task: str, score: Scored, num_actions: int) -> Callable[[str], Iterator[Play]]:
    """Returns a function that yields random play and the best constant action of a game.

    Args:
        task: the environment.
        score: returns the score of a player.
        num_actions: the number of an agent's actions.
    """

    def plays(device: str) -> Iterator[Play]:
        yield Play("random", random_play)
        action = best_action(score, Match(f"gpuvec/{task}", {}, 200, FIRST_SEED - 1, device), range(num_actions))
        yield Play("best constant action", lambda seed: constant(action), f"action {action}")

    return plays


def follow_ball(obs: Tensor) -> Tensor:
    """Returns actions that keep the paddle of Breakout below the ball, (E,)."""
    paddle, ball = (obs[:, channel].any(1).int().argmax(-1) for channel in range(2))
    return (ball < paddle).long() + 2 * (ball > paddle).long()


def steer(difference: Tensor, velocity: Tensor) -> Tensor:
    """Returns actions, (...), that accelerate a particle towards a place and brake before it.

    Args:
        difference: (..., 2): the place relative to the particle.
        velocity: (..., 2).
    """
    wanted = difference - 0.3 * velocity
    axis = wanted.abs().argmax(-1, keepdim=True)
    along = wanted.gather(-1, axis).squeeze(-1)
    action = 1 + 2 * axis.squeeze(-1) + (along > 0.0).long()
    return action.where(along.abs() > 0.05, 0)


def spread(obs: Tensor) -> Tensor:
    """Returns actions, (E, A), by which each agent of SimpleSpread goes to the landmark of its own number."""
    import torch

    agents = obs.shape[1]
    landmarks = obs[..., 4 : 4 + 2 * agents].unflatten(-1, (agents, 2))
    own = landmarks[:, torch.arange(agents), torch.arange(agents)]
    return steer(own, obs[..., :2])


def speak_and_listen(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the actions of a speaker who says the number of the goal, and of a listener who goes there."""
    listener, words = obs["listener"], obs["speaker"].shape[-1]
    landmarks, heard = listener[..., 2 : 2 + 2 * words].unflatten(-1, (words, 2)), listener[..., -words:]
    moves = steer((landmarks * heard.unsqueeze(-1)).sum(-2), listener[..., :2])
    return {"speaker": obs["speaker"].argmax(-1), "listener": moves.where(heard.any(-1), 0)}


def hunt(obs: Tensor) -> Tensor:
    """Returns actions, (E, A), by which wolves of Predators go to the sheep that is nearest in their window."""
    import torch

    from gpuvec_envs.predators import ENV, FORWARD, LEFT, RIGHT

    ahead, side = ENV.params.view_ahead, ENV.params.view_side
    rows = ahead - torch.arange(obs.shape[-2], device=obs.device)
    columns = torch.arange(obs.shape[-1], device=obs.device) - side
    distance = rows.abs()[:, None] + columns.abs()
    nearest = torch.where(obs[..., 1, :, :] > 0, distance, 1000).flatten(-2).argmin(-1)
    is_seen = (obs[..., 1, :, :] > 0).flatten(-2).any(-1)
    row, column = rows[nearest // len(columns)], columns[nearest % len(columns)]
    turns = is_seen & (column.abs() > row)
    return torch.where(turns, torch.where(column < 0, LEFT, RIGHT), FORWARD)


def chase(obs: Tensor) -> Tensor:
    """Returns actions, (E, A), by which agents of TagGridWorld go to the runner along the longer way of both axes."""
    agents = obs.shape[1]
    x, y, role, is_self = obs[..., : 4 * agents].unflatten(-1, (4, agents)).unbind(-2)
    dx, dy = ((place * role).sum(-1) - (place * is_self).sum(-1) for place in (x, y))
    along_x, along_y = 1 + (dx < 0).long(), 3 + (dy < 0).long()
    return along_x.where(dx.abs() >= dy.abs(), along_y)


def middle_columns(obs: Tensor, action_mask: Tensor) -> Tensor:
    """Returns the allowed column that is nearest to the middle, (E, A)."""
    columns = action_mask.shape[-1]
    order = sorted(range(columns), key=lambda column: abs(column - columns // 2))
    choice = action_mask[..., order].int().argmax(-1)
    return choice.new_tensor(order)[choice]


def score_connect_four(player: Player, match: Match) -> float:
    """Returns the mean return against an opponent that wins or blocks at once; each side begins in half of the episodes."""
    from gpuvec.learners.evaluation.players import wins_or_blocks

    return game_training.score_both_sides(player, wins_or_blocks, match)


def connect_four_plays(device: str) -> Iterator[Play]:
    """Yields the ways to play ConnectFour."""
    from gpuvec.learners.evaluation.players import wins_or_blocks

    yield Play("random", random_play)
    yield Play("middle columns first", rule(middle_columns))
    yield Play("wins or blocks at once", lambda seed: wins_or_blocks(seed + 10**6))


def score_hunt(player: Player, match: Match) -> float:
    """Returns the sheep that wolves eat in 100 steps of a living wolf among random sheep."""
    from gpuvec.learners.evaluation.players import at_random, by_role

    players = by_role({"wolves": player, "sheep": at_random(match.seed + 1)})
    return game_training.hunt_rate(match._replace(params={**match.params, **game_training.HUNT}).play(players))


def score_taggers(player: Player, match: Match) -> float:
    """Returns the mean return of a tagger of TagGridWorld against a runner that moves at random."""
    from gpuvec.learners.evaluation.players import at_random, by_role

    return mean_return(by_role({"tagger": player, "runner": at_random(match.seed + 1)}), match, "tagger")


def score_percent_caught(player: Player, match: Match) -> float:
    """Returns the percentage of random runners that taggers of TagContinuous catch."""
    from gpuvec.learners.evaluation.players import at_random

    return tag_training.percent_caught(player, at_random(match.seed + 1), match.episodes, match.seed, match.device)[0]


def with_rule(plays: Callable[[str], Iterator[Play]], name: str, player: Callable[[int], Player]) -> Callable[[str], Any]:
    """Returns a function that yields `plays` and a play by simple rules."""

    def both(device: str) -> Iterator[Play]:
        yield from plays(device)
        yield Play(name, player)

    return both


def listener_plays(device: str) -> Iterator[Play]:
    """Yields random play of SimpleSpeakerListener, and a listener that ignores the speaker."""
    yield Play("random", random_play)
    yield Play("listener stands still", lambda seed: constant({"speaker": 0, "listener": 0}))


def tag_plays(device: str) -> Iterator[Play]:
    """Yields the ways to play TagContinuous."""
    yield Play("random", random_play)
    yield Play("taggers that stand still", lambda seed: constant((0, 0)))
    yield Play("taggers that go to the nearest runner", lambda seed: tag_training.make_chasers)


def rice_plays(device: str, *, negotiation: bool) -> Iterator[Play]:
    """Yields random play of RICE-N and the best constant levels, the same for all regions."""
    import torch

    from gpuvec_envs import rice_rules as rules

    kinds = {
        "savings": slice(0, 1), "mitigation": slice(1, 2), "export limit": slice(2, 3),
        "tariffs": slice(rules.TARIFFS, rules.IMPORTS), "imports": slice(rules.IMPORTS, rules.PROPOSALS),
    }  # fmt: skip
    sizes = dict.fromkeys(kinds, 10)
    if negotiation:
        kinds |= {
            "promises": slice(rules.PROPOSALS, rules.DECISIONS, 2), "requests": slice(rules.PROPOSALS + 1, rules.DECISIONS, 2),
            "acceptance": slice(rules.DECISIONS, rules.DECISIONS + rules.NUM_REGIONS),
        }  # fmt: skip
        sizes |= {"promises": 10, "requests": 10, "acceptance": 2}
    width = rules.DECISIONS + rules.NUM_REGIONS if negotiation else rules.PROPOSALS
    match = Match("gpuvec/RICE-N-v0", {"negotiation": negotiation}, 1, 0, device)

    def returns_of(candidates: Sequence[dict[str, int]]) -> list[float]:
        actions = torch.zeros(len(candidates), 1, width, dtype=torch.int64)
        for row, levels in enumerate(candidates):
            for kind, level in levels.items():
                actions[row, 0, kinds[kind]] = level
        results = match._replace(episodes=len(candidates)).play(constant(actions))
        return [float(value) for value in results.returns.mean(1)]

    yield Play("random", random_play)
    start: dict[str, int] = dict.fromkeys(kinds, 0)
    grid = [{**start, "savings": a, "mitigation": b} for a in range(10) for b in range(10)]
    levels = climb(grid[argmax(returns_of(grid))], sizes, returns_of)
    actions = torch.zeros(1, 1, width, dtype=torch.int64)
    for kind, level in levels.items():
        actions[..., kinds[kind]] = level
    details = ", ".join(f"{kind} {level}" for kind, level in levels.items())
    yield Play("best constant levels", lambda seed: constant(actions), details)


def argmax(values: Sequence[float]) -> int:
    """Returns the index of the largest of `values`, the first of equal ones."""
    return max(range(len(values)), key=values.__getitem__)


def climb(
    start: dict[Any, int], sizes: dict[Any, int], returns_of: Callable[[Sequence[dict[Any, int]]], list[float]], first: int = 0
) -> dict[Any, int]:
    """Returns the levels that are best along each coordinate, found by changing one after the other.

    Args:
        start: {coordinate: level}.
        sizes: {coordinate: number of levels}.
        returns_of: the returns of several candidates.
        first: the lowest level.
    """
    best = dict(start)
    while True:
        before = dict(best)
        for name, size in sizes.items():
            candidates = [best] + [{**best, name: level} for level in range(first, first + size) if level != best[name]]
            best = candidates[argmax(returns_of(candidates))]
        if best == before:
            return best


PERIOD = 28  # days, as long as a state keeps a level


def schedule(levels: Tensor, subsidies: Tensor) -> Player:
    """Returns a player of EpidemicEconomy whose states set a level in each period, and whose planner keeps one of subsidies.

    Args:
        levels: (E or 1, P): the level of each period.
        subsidies: (E or 1,).
    """

    def player(envs: Any) -> Any:
        days = count()

        def act(obs: dict[str, Tensor], action_mask: Any) -> dict[str, Tensor]:
            (episodes, states, _), day = obs["state"].shape, next(days)
            level = levels[:, day // PERIOD % levels.shape[1]] * (day % PERIOD == 0)  # 0 keeps the level
            moves = {"state": level.view(-1, 1).expand(episodes, states), "planner": subsidies.view(-1, 1).expand(episodes, 1)}
            return {role: move.to(obs[role].device) for role, move in moves.items()}

        return act

    return player


def epidemic_plays(device: str) -> Iterator[Play]:
    """Yields random play of EpidemicEconomy, the best constant levels, and the best schedule that the search finds."""
    import torch

    match = Match("gpuvec/EpidemicEconomy-v0", {}, 1, 0, device)
    periods = -(-540 // PERIOD)

    def returns_of(candidates: Sequence[dict[Any, int]]) -> list[float]:
        levels = torch.tensor([[one[period] for period in range(periods)] for one in candidates])
        subsidies = torch.tensor([one["subsidy"] for one in candidates])
        results = match._replace(episodes=len(candidates)).play(schedule(levels, subsidies))
        return [float(value) for value in results.returns[:, results.roles["planner"]].mean(1)]

    def make_play(name: str, chosen: dict[Any, int], details: str) -> Play:
        levels = torch.tensor([[chosen[period] for period in range(periods)]])
        return Play(name, lambda seed: schedule(levels, torch.tensor([chosen["subsidy"]])), details)

    yield Play("random", random_play)
    grid = [{**dict.fromkeys(range(periods), level), "subsidy": s} for level in range(1, 11) for s in range(21)]
    best = grid[argmax(returns_of(grid))]
    yield make_play("best constant levels", best, f"closure {best[0]}, subsidies {best['subsidy']}")
    best = climb(best, dict.fromkeys(range(periods), 10), returns_of, first=1)
    levels = " ".join(str(best[period]) for period in range(periods))
    yield make_play("best schedule found", best, f"closure in each four weeks {levels}, subsidies {best['subsidy']}")


def planner_return(player: Player, match: Match) -> float:
    """Returns the mean return of the planner of EpidemicEconomy."""
    return mean_return(player, match, "planner")


LISTENER = "SimpleSpeakerListener-v0"
MEAN_RETURN = "mean return of an agent"
GAMES = (
    Game(
        "Breakout-v0", "mean return", mean_return,
        with_rule(constants("Breakout-v0", mean_return, 3), "paddle below the ball", rule(follow_ball)), trained="Breakout-v0",
    ),
    Game(
        "SimpleSpread-v0", MEAN_RETURN, mean_return,
        with_rule(constants("SimpleSpread-v0", mean_return, 5), "each to its own landmark", rule(spread)),
        trained="SimpleSpread-v0",
    ),
    Game(
        LISTENER, MEAN_RETURN, mean_return,
        with_rule(listener_plays, "speaker says the goal, listener goes there", rule(speak_and_listen)),
    ),
    Game(
        "ConnectFour-v0.against_win_or_block", "mean return against an opponent that wins or blocks at once",
        score_connect_four, connect_four_plays, trained="ConnectFour-v0",
    ),
    Game(
        "Predators-v0", "sheep that wolves eat in 100 steps", score_hunt,
        with_rule(constants("Predators-v0", score_hunt, 4), "wolves go to the nearest sheep", rule(hunt)),
    ),
    Game("RICE-N-v0", MEAN_RETURN, mean_return, lambda device: rice_plays(device, negotiation=False)),
    Game(
        "RICE-N-v0.negotiation", MEAN_RETURN, mean_return, lambda device: rice_plays(device, negotiation=True),
        {"negotiation": True},
    ),
    Game("EpidemicEconomy-v0", "mean return of the planner", planner_return, epidemic_plays),
    Game(
        "TagGridWorld-v0", "mean return of a tagger against a random runner", score_taggers,
        with_rule(constants("TagGridWorld-v0", score_taggers, 5), "taggers go to the runner", rule(chase)),
        trained="TagGridWorld-v0",
    ),
    Game(
        "TagContinuous-v0", "% of random runners caught by 5 taggers", score_percent_caught, tag_plays,
        trained="TagContinuous-v0-equal",
    ),
)  # fmt: skip


def trained_play(name: str, device: str) -> Play:
    """Returns the play of a policy that comes with gpuvec, which takes its most probable actions."""
    import gpuvec
    from gpuvec.learners.evaluation.players import policies_by_role

    networks = gpuvec.load_policy(name, device=device).networks
    return Play("policy that comes with gpuvec", lambda seed: policies_by_role(networks), f"most probable actions of {name}")


def main() -> None:
    """Scores all ways to play all games, and writes the CSV file."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--episodes", type=int, default=1000, metavar="N", help="of each seed")
    parser.add_argument("--only", default="", metavar="TEXT", help="games whose name contains the text; other rows are kept")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FILE", help="the CSV file")
    arguments = parser.parse_args()
    from gpuvec.engine.backends.device import parse_device

    device, figures = str(parse_device(arguments.device)), Figures("baselines", arguments.json)
    columns = ("task", "measure", "play", "details", "mean", "half_width", "seeds", "episodes")
    rows: dict[str, list[dict[str, Any]]] = {game.task: [] for game in GAMES}
    if arguments.to.exists():
        with arguments.to.open(newline="") as file:
            for row in csv.DictReader(file):
                rows.setdefault(row["task"], []).append(row)
    for game in GAMES:
        if arguments.only not in game.task:
            continue
        rows[game.task] = []
        plays = [*game.plays(device), *([trained_play(game.trained, device)] if game.trained else [])]
        for play in plays:
            scores = []
            for seed in range(FIRST_SEED, FIRST_SEED + NUM_SEEDS):
                match = Match(f"gpuvec/{game.task.partition('.')[0]}", game.params, arguments.episodes, seed, device)
                scores.append(game.score(play.make_player(seed), match))
            mean, half_width = interval_over_seeds(scores)
            numbers = {"half_width": half_width, "seeds": NUM_SEEDS, "episodes": arguments.episodes}
            name = play.name.replace(" ", "_")
            figures.add(f"{game.task}.{name}", mean, "score", (game.task.partition(".")[0], "vector", "learners"), **numbers)
            values = (game.task, game.measure, play.name, play.details, f"{mean:.4g}", f"{half_width:.2g}")
            rows[game.task].append(dict(zip(columns, (*values, NUM_SEEDS, arguments.episodes), strict=True)))
    with arguments.to.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for game_rows in rows.values() for row in game_rows)


if __name__ == "__main__":
    main()
