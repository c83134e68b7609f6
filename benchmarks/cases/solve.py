"""Ten trainings of each environment that has tuned settings and one agent, and the returns of the final policies.

Each training has its own process. A figure is the mean return of the policy's most probable actions over 1,000 episodes of the
environment with its default parameters, whatever the training changed. The curves, the mean returns of the episodes that ended
in an iteration, are written to a CSV file, from which `figures.py` draws.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser
from gpuvec import SingleAgentEnv
from gpuvec.learners.config.tuned import TUNED_SETTINGS, tuned
from gpuvec.registration import registered_envs

Point = tuple[int, str, str]
"""A point of a curve: env steps, seconds, and the mean return of the episodes that ended in the iteration."""


class Goal(NamedTuple):
    """A training, and the return that its policy must reach."""

    env: str
    algorithm: str
    bar: float  # mean return


class Solution(NamedTuple):
    """The result of a training.

    Attributes:
        seed: of the training.
        value: the mean return of the final policy.
        curve: the points of the curve.
        steps_to_bar: env steps until the mean over all environments of the last episode's return was at the bar; nan if it
            never was, or if the environment of the training had other parameters.
    """

    seed: int
    value: float
    curve: list[Point]
    steps_to_bar: float


def load_goals() -> tuple[Goal, ...]:
    """Returns a goal for each tuned training of a bundled environment with one agent, if the environment has a bar."""
    goals = []
    for name, env in registered_envs("gpuvec").items():
        bar = BARS.get(name, env.reward_threshold)
        if isinstance(env, SingleAgentEnv) and bar is not None:
            goals += [Goal(name, algorithm, bar) for id, algorithm in TUNED_SETTINGS if id == f"gpuvec/{name}"]
    return tuple(goals)


BARS = {"Pendulum-v1": -200.0}  # mean returns; other environments declare a reward threshold
GOALS = load_goals()
POINTS = 200  # of a curve
CURVES = Path(__file__).resolve().parents[1] / "results" / "solve.csv"


def make_curve(history: Sequence[Mapping[str, float]]) -> list[Point]:
    """Returns about `POINTS` of the iterations of a `history` in which episodes ended."""
    ended = [metrics for metrics in history if not math.isnan(metrics["return"])]
    points = ended[:: max(1, len(ended) // POINTS)]
    return [(int(m["steps"]), f"{m['seconds']:.3f}", f"{m['return']:.6g}") for m in points]


def solve(task: tuple[Goal, int, str]) -> Solution:
    """Trains and evaluates; `task` is a goal, a seed and a device."""
    from gpuvec.learners.evaluation.evaluate import evaluate
    from gpuvec.learners.training import train

    goal, seed, device = task
    env = f"gpuvec/{goal.env}"
    args = tuned(env, device, goal.algorithm, seed=seed)
    result = train(args)
    value = float(evaluate(result.network, env, episodes=1000, seed=1000 + seed, device=device).mean())
    steps = (metrics["steps"] for metrics in result.history if metrics["last_return"] >= goal.bar and not args.params)
    return Solution(seed, value, make_curve(result.history), next(steps, math.nan))


def report(figures: Figures, goal: Goal, solutions: list[Solution]) -> None:
    """Adds the rows of all seeds.

    Args:
        figures: where the rows are added.
        goal: the training.
        solutions: the result of each seed.
    """
    name, sources = f"{goal.env}.{goal.algorithm}", (goal.env, "vector", "learners")
    values, steps = [one.value for one in solutions], [one.steps_to_bar for one in solutions]
    passed = sum(value >= goal.bar for value in values)
    details: dict[str, Any] = {"bar": goal.bar, "seeds": len(solutions), "returns": [round(value, 1) for value in values]}
    figures.add(f"{name}.passed", passed, "seeds", sources, **details)
    figures.add(f"{name}.lowest", min(values), "return", sources)
    figures.add(f"{name}.mean", sum(values) / len(values), "return", sources)
    if not any(map(math.isnan, steps)):
        figures.add(f"{name}.steps.median", sorted(steps)[len(steps) // 2] / 1e6, "M steps", sources, bar=goal.bar)
        figures.add(f"{name}.steps.worst", max(steps) / 1e6, "M steps", sources, bar=goal.bar)


def main() -> None:
    """Trains for all goals."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(10)))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", metavar="TEXT", help="goals whose <environment>.<algorithm> contains the text")
    parser.add_argument("--to", type=Path, default=CURVES, metavar="FILE", help="the CSV file of the curves")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="trainings at the same time")
    arguments = parser.parse_args()
    figures = Figures("solve", arguments.json)
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    goals = [goal for goal in GOALS if arguments.only in f"{goal.env}.{goal.algorithm}"]
    tasks = [(goal, seed, arguments.device) for goal in goals for seed in arguments.seeds]
    with arguments.to.open("w", newline="") as file, get_context("spawn").Pool(arguments.parallel) as pool:
        curves = csv.writer(file)
        curves.writerow(("env", "algorithm", "seed", "steps", "seconds", "return"))
        results = pool.imap(solve, tasks)
        for goal in goals:
            solutions = list(islice(results, len(arguments.seeds)))
            for one in solutions:
                curves.writerows((goal.env, goal.algorithm, one.seed, *point) for point in one.curve)
            report(figures, goal, solutions)


if __name__ == "__main__":
    main()
