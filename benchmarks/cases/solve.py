"""Ten trainings of each environment that has tuned settings and one agent, and the returns of the final policies.

Each training has its own process. A figure is the mean return of the policy's most probable actions over 1,000 episodes of the
environment with its default parameters, whatever the training changed.

The curves are those of evaluations during the training: mean returns of 32 whole episodes of the policy at that time, with
actions that it draws and the default parameters. `policy_steps` are the env steps until an evaluation reaches the threshold.
They are comparable at equal numbers of environments alone, so CartPole is also trained with other numbers. `last_return_steps`
are those until the mean over all environments of the last episode's return does. It lags by an episode, so on CartPole it is
at least `floor_steps`: each environment must play 475 steps. The curves are written to a CSV file, from which `figures.py`
draws.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser
from gpuvec import SingleAgentEnv
from gpuvec.learners.config.tuned import TUNED_SETTINGS, tuned
from gpuvec.registration import registered_envs

if TYPE_CHECKING:
    from gpuvec.learners.config.training_config import TrainingArgs
    from gpuvec.learners.evaluation.evaluate import EpisodeResults
    from gpuvec.learners.evaluation.players import Player

Point = tuple[int, str, str]
"""A point of a curve: env steps, seconds without evaluations, and the mean return of an evaluation."""


class Match(NamedTuple):
    """Episodes that are played for a score.

    Attributes:
        env: id of the environment.
        params: parameters of the environment that are not its defaults.
        episodes: how many are played.
        seed: of the environments.
        device: "auto", "cpu" or "cuda:<index>".
    """

    env: str
    params: Mapping[str, Any]
    episodes: int
    seed: int
    device: str

    def play(self, player: Player) -> EpisodeResults:
        """Returns the results of all episodes, in which `player` acts for all agents."""
        from gpuvec.learners.evaluation.evaluate import run_episodes

        return run_episodes(self.env, player, episodes=self.episodes, seed=self.seed, device=self.device, params=self.params)


class Score(NamedTuple):
    """The score of a policy, and means of the environment's own metrics over the same episodes."""

    value: float
    metrics: Mapping[str, float] = {}  # is not mutated


Scorer = Callable[[Mapping[str, Any], Match], Score]
"""Returns the score of networks, {role: its policy}, or {"all": policy} for one of all agents."""
Comparison = Callable[[Mapping[str, Any], Match], Mapping[str, float]]
"""Returns figures of networks, as of a `Scorer`, in which they are compared with other players."""


def score_return(networks: Mapping[str, Any], match: Match, role: str | None = None, greedy: bool = True) -> Score:
    """Returns the mean return of the most probable actions.

    Args:
        networks: {role: its policy}, or {"all": policy} for one of all agents.
        match: the episodes.
        role: the agents over which returns are averaged; None for all agents.
        greedy: take the most probable actions instead of drawing them.
    """
    from gpuvec.learners.evaluation.players import policies_by_role

    results = match.play(policies_by_role(networks, greedy=greedy, seed=match.seed))
    returns = results.returns if role is None else results.returns[:, results.roles[role]]
    return Score(float(returns.mean()), {name: float(values.mean()) for name, values in results.metrics.items()})


class Goal(NamedTuple):
    """A training, and the score that its policy must reach.

    Attributes:
        env: name of the environment.
        algorithm: name of the algorithm.
        bar: the score that counts as solved.
        score: the score of a policy, by default its mean return.
        num_scores: points of a curve of scores; 0 for the curve of the returns in the training.
        params: parameters of the environment that are not its defaults, in the training and for the score.
        compare: figures of the final policy beside its metrics.
        num_envs: the number of environments; None for the tuned one.
        opponent: the function in `players` that plays some agents in the training and the opponent in the score; "" for none.
    """

    env: str
    algorithm: str
    bar: float
    score: Scorer = score_return
    num_scores: int = 0
    params: Mapping[str, Any] = {}  # is not mutated
    compare: Comparison | None = None
    num_envs: int | None = None
    opponent: str = ""

    @property
    def task(self) -> str:
        """Name of the environment, with parameters that are not its defaults, a number of environments and the opponent."""
        parts = [name if value is True else f"{name}={value}" for name, value in self.params.items()]
        parts += [] if self.num_envs is None else [str(self.num_envs)]
        return ".".join((self.env, *parts, *([f"against_{self.opponent}"] if self.opponent else [])))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the training that are not the tuned ones."""
        size = {} if self.num_envs is None else {"num_envs": self.num_envs}
        return {"params": self.params, "evaluate_params": dict(self.params), **size}

    def match(self, episodes: int, seed: int, device: str) -> Match:
        """Returns the episodes of a score, see `Match`."""
        return Match(f"gpuvec/{self.env}", self.params, episodes, seed, device)


class Solution(NamedTuple):
    """The result of a training.

    Attributes:
        seed: of the training.
        value: the mean return of the final policy.
        curve: the points of the curve.
        steps_to_bar: env steps until an evaluation or a score of the policy was at the bar; nan if none was.
        metrics: means of the environment's own metrics over the episodes of the final policy, and figures of its comparison.
        last_return_steps: env steps until the mean over all environments of the last episode's return was at the bar; nan if it
            never was, or if the environment of the training had other parameters.
        num_envs: the number of environments of the training.
    """

    seed: int
    value: float
    curve: list[Point]
    steps_to_bar: float
    metrics: Mapping[str, float]
    last_return_steps: float = math.nan
    num_envs: int = 0


def load_goals() -> tuple[Goal, ...]:
    """Returns a goal for each tuned training of a bundled environment with one agent, if the environment has a bar."""
    goals = []
    for name, env in registered_envs("gpuvec").items():
        bar = BARS.get(name, env.reward_threshold)
        if isinstance(env, SingleAgentEnv) and bar is not None:
            goals += [Goal(name, algorithm, bar) for id, algorithm in TUNED_SETTINGS if id == f"gpuvec/{name}"]
    return (*goals, *(Goal("CartPole-v1", "ppo", LONG_EPISODE, num_envs=num_envs) for num_envs in SIZES))


LONG_EPISODE = 475.0  # steps of CartPole, of which each is rewarded by 1
SIZES = (1024, 4096, 16384)  # numbers of environments with which CartPole is trained
BARS = {"Pendulum-v1": -200.0}  # mean returns; other environments declare a reward threshold
GOALS = load_goals()
POINTS = 200  # of a curve
SCORED_EPISODES = 500  # of a point in a curve of scores
CURVES = Path(__file__).resolve().parents[1] / "results" / "solve.csv"


def make_curve(history: Sequence[Mapping[str, float]]) -> list[Point]:
    """Returns the evaluations in the `history` of a training with the settings `with_evaluations`."""
    points = [metrics for metrics in history if not math.isnan(mean_of_roles(metrics, "eval_return"))]
    return [(int(m["steps"]), f"{m['seconds']:.3f}", f"{mean_of_roles(m, 'eval_return'):.6g}") for m in points]


def with_evaluations(args: TrainingArgs) -> TrainingArgs:
    """Returns settings, resolved, with evaluations at about `POINTS` iterations."""
    return replace(args, evaluate_every=max(1, args.iterations // POINTS))


def with_decreasing_entropy(args: TrainingArgs) -> TrainingArgs:
    """Returns settings, resolved, whose entropy bonus falls to a fifth, for trainings against an opponent.

    A policy that plays both sides alone needs the bonus to meet positions of other players.
    """
    from gpuvec.learners.config.training_config import OnPolicyArgs

    assert isinstance(args, OnPolicyArgs), "DDPG has no entropy"
    return replace(args, ent_coef_table=((0, args.ent_coef), (args.total_steps or 0, args.ent_coef / 5)))


def first_steps(history: Sequence[Mapping[str, float]], name: str, bar: float) -> float:
    """Returns the env steps after which the metric `name`, the mean of all roles, was first at the `bar`; nan if it was not."""
    steps = (metrics["steps"] for metrics in history if mean_of_roles(metrics, name) >= bar)
    return next(steps, math.nan)


def mean_of_roles(metrics: Mapping[str, float], name: str) -> float:
    """Returns the metric `name`, or the mean of those of all roles if each role has a policy."""
    names = [name] if name in metrics else [key for key in metrics if key.endswith(f"/{name}")]
    return sum(metrics[key] for key in names) / len(names)


class ScoreCurve:
    """Scores the policy at equal distances in the training, as the `on_iteration` and the `exact_at` of `train`.

    Args:
        goal: the training.
        iterations: their number in the training.
        seed: of the evaluations.
        device: "auto", "cpu" or "cuda:<index>".
    """

    def __init__(self, goal: Goal, iterations: int, seed: int, device: str) -> None:
        self.goal, self.seed, self.device = goal, seed, device
        self.interval = max(1, iterations // goal.num_scores)
        self.points: list[Point] = []
        self._seconds = 0.0  # of the evaluations

    def is_scored(self, iteration: int) -> bool:
        """Returns whether the policy after `iteration` is scored."""
        return iteration % self.interval == 0

    def __call__(self, learner: Any, metrics: Mapping[str, float]) -> None:
        """Adds a point for the policy of `learner`, if its iteration is scored."""
        if not self.is_scored(int(metrics["iteration"])):
            return
        begin = time.perf_counter()
        networks = {role: policy.network for role, policy in learner.policies.items()}
        score = self.goal.score(networks, self.goal.match(SCORED_EPISODES, self.seed, self.device)).value
        self.points.append((int(metrics["steps"]), f"{metrics['seconds'] - self._seconds:.3f}", f"{score:.6g}"))
        self._seconds += time.perf_counter() - begin


def solve(task: tuple[Goal, int, str]) -> Solution:
    """Trains and evaluates; `task` is a goal, a seed and a device."""
    from gpuvec.engine.backends.device import parse_device
    from gpuvec.learners.environments import policy_roles
    from gpuvec.learners.evaluation import players
    from gpuvec.learners.training import train

    goal, seed, device = task
    device, env = str(parse_device(device)), f"gpuvec/{goal.env}"
    args = tuned(env, device, goal.algorithm, seed=seed, **goal.settings).resolved(device)
    roles = policy_roles(env, args.params, goal.algorithm)
    opponent = getattr(players, goal.opponent) if goal.opponent else None
    args = with_decreasing_entropy(args) if goal.opponent else args
    if goal.num_scores:
        scores = ScoreCurve(goal, args.iterations, 2000 + seed, device)
        result = train(dict.fromkeys(roles, args), on_iteration=scores, exact_at=scores.is_scored, opponent=opponent)
        curve = scores.points
    else:
        result = train(dict.fromkeys(roles, with_evaluations(args)), opponent=opponent)
        curve = make_curve(result.history)
    match = goal.match(1000, 1000 + seed, device)
    score = goal.score(result.networks, match)
    comparison = goal.compare(result.networks, match) if goal.compare else {}
    steps = next((float(steps) for steps, _, value in curve if float(value) >= goal.bar), math.nan)
    is_comparable = args.params == goal.params and not goal.num_scores
    # Before each environment has ended an episode, short ones are preferred.
    played = [metrics for metrics in result.history if mean_of_roles(metrics, "last_return_share") == 1.0]
    last_return_steps = first_steps(played, "last_return", goal.bar) if is_comparable else math.nan
    metrics = {**score.metrics, **comparison}
    return Solution(seed, score.value, curve, steps, metrics, last_return_steps, args.num_envs or 0)


def attempt(task: tuple[Goal, int, str]) -> Solution | str:
    """Returns the result of `solve`, or the text of its error, so that other trainings continue."""
    try:
        return solve(task)
    except Exception as error:  # noqa: BLE001  # a training that fails must not stop the others
        return f"{type(error).__name__}: {error}"


def report(figures: Figures, goal: Goal, solutions: Sequence[Solution]) -> None:
    """Adds the rows of all seeds.

    Args:
        figures: where the rows are added.
        goal: the training.
        solutions: the result of each seed.
    """
    name, sources = f"{goal.task}.{goal.algorithm}", (goal.env, "vector", "learners")
    values = [one.value for one in solutions]
    passed = sum(value >= goal.bar for value in values)
    details: dict[str, Any] = {"bar": goal.bar, "seeds": len(solutions), "returns": [round(value, 1) for value in values]}
    figures.add(f"{name}.passed", passed, "seeds", sources, **details)
    unit = "score" if goal.num_scores else "return"
    figures.add(f"{name}.lowest", min(values), unit, sources)
    figures.add(f"{name}.mean", sum(values) / len(values), unit, sources)
    for metric in solutions[0].metrics:
        means = [one.metrics[metric] for one in solutions]
        details = {"lowest": round(min(means), 4), "highest": round(max(means), 4)}
        figures.add(f"{name}.{metric}", sum(means) / len(means), "mean", sources, **details)
    num_envs = solutions[0].num_envs
    for kind, steps in (
        ("policy_steps", [one.steps_to_bar for one in solutions]),
        ("last_return_steps", [one.last_return_steps for one in solutions]),
    ):
        if not any(map(math.isnan, steps)):
            details = {"bar": goal.bar, "num_envs": num_envs, "seeds": str([round(x / 1e6, 4) for x in steps])}
            figures.add(f"{name}.{kind}.median", statistics.median(steps) / 1e6, "M steps", sources, **details)
            figures.add(f"{name}.{kind}.worst", max(steps) / 1e6, "M steps", sources, bar=goal.bar, num_envs=num_envs)
    if goal.env == "CartPole-v1":
        figures.add(f"{name}.floor_steps", LONG_EPISODE * num_envs / 1e6, "M steps", sources, num_envs=num_envs)


def parse_arguments(description: str | None, curves_file: Path) -> Namespace:
    """Returns the arguments of the command line.

    Args:
        description: of the command line.
        curves_file: the default of the CSV file of the curves.
    """
    parser = make_parser(description)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(10)))
    parser.add_argument("--devices", nargs="+", default=["auto"], metavar="NAME", help="trainings are distributed over them")
    parser.add_argument("--only", default="", metavar="TEXT", help="goals whose <environment>.<algorithm> contains the text")
    parser.add_argument("--to", type=Path, default=curves_file, metavar="FILE", help="the CSV file of the curves")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="trainings at the same time")
    return parser.parse_args()


def run_trainings(figures: Figures, goals: Sequence[Goal], arguments: Namespace) -> None:
    """Trains for all goals, and writes figures and curves.

    Args:
        figures: where the rows are added.
        goals: the trainings.
        arguments: the result of `parse_arguments`.
    """
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    goals = [goal for goal in goals if arguments.only in f"{goal.task}.{goal.algorithm}"]
    trainings = [(goal, seed) for goal in goals for seed in arguments.seeds]
    tasks = [(*training, device) for training, device in zip(trainings, cycle(arguments.devices), strict=False)]
    # With one task for each process, no process keeps the memory of a training that failed, or memory on several GPUs.
    pool_of_processes = get_context("spawn").Pool(arguments.parallel, maxtasksperchild=1)
    with arguments.to.open("w", newline="") as file, pool_of_processes as pool:
        write_results(figures, goals, arguments.seeds, pool.imap(attempt, tasks), file)


def write_results(
    figures: Figures, goals: Sequence[Goal], seeds: Sequence[int], results: Iterable[Solution | str], file: TextIO
) -> None:
    """Writes the curve of each training when it has ended, and the figures of each goal.

    A training that failed is a row of its own, and the figures of its goal are those of the other seeds.

    Args:
        figures: where the rows are added.
        goals: the goals.
        seeds: of the trainings of each goal.
        results: the results of `attempt` for all seeds of the first goal, then of the second one, and so on.
        file: the CSV file of the curves.
    """
    curves, remaining = csv.writer(file), iter(results)
    curves.writerow(("env", "algorithm", "seed", "steps", "seconds", "return"))
    for goal in goals:
        solutions = []
        for seed, result in zip(seeds, islice(remaining, len(seeds)), strict=True):
            if isinstance(result, str):
                figures.add_failure(f"{goal.task}.{goal.algorithm}.seed_{seed}", result)
                continue
            solutions.append(result)
            curves.writerows((goal.task, goal.algorithm, seed, *point) for point in result.curve)
            file.flush()
        if solutions:
            report(figures, goal, solutions)


def main() -> None:
    """Trains for all goals."""
    arguments = parse_arguments(__doc__, CURVES)
    run_trainings(Figures("solve", arguments.json), GOALS, arguments)


if __name__ == "__main__":
    main()
