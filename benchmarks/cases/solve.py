"""Ten trainings of each classic environment with its tuned settings, and what their last policies are worth.

Each seed has a process. The figure is the mean return of the policy's likeliest actions over 1,000 episodes of the
environment as it is, whatever it was trained in. The curves, the mean returns of the episodes that ended in an iteration,
go into one CSV file, from which `figures.py` draws.
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


class Goal(NamedTuple):
    """What a policy is to reach."""

    env: str
    algorithm: str
    bar: float  # mean return


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


Point = tuple[int, str, str]
"""Of a curve: env steps, seconds, the mean return of the episodes that ended in the iteration."""


class Solved(NamedTuple):
    """What came of a training."""

    seed: int
    value: float  # mean return
    curve: list[Point]
    to_bar: float  # env steps until the mean over all environments of the last episode's return was at the bar; nan if it was
    # never, or if training had an environment of its own


def curve(history: Sequence[Mapping[str, float]]) -> list[Point]:
    """About `POINTS` of the iterations in which episodes ended."""
    ended = [m for m in history if not math.isnan(m["return"])]
    return [(int(m["steps"]), f"{m['seconds']:.3f}", f"{m['return']:.6g}") for m in ended[:: max(1, len(ended) // POINTS)]]


def solve(task: tuple[Goal, int, str]) -> Solved:
    """Trains and plays."""
    from gpuvec.learners.evaluation.evaluate import evaluate
    from gpuvec.learners.training import train

    goal, seed, device = task
    env = f"gpuvec/{goal.env}"
    args = tuned(env, device, goal.algorithm, seed=seed)
    result = train(args)
    value = float(evaluate(result.network, env, episodes=1000, seed=1000 + seed, device=device).mean())
    reached = (m["steps"] for m in result.history if m["last_return"] >= goal.bar and not args.params)
    return Solved(seed, value, curve(result.history), next(reached, math.nan))


def main() -> None:
    """Trains all."""
    p = make_parser(__doc__)
    p.add_argument("--seeds", type=int, nargs="*", default=list(range(10)))
    p.add_argument("--device", default="auto")
    p.add_argument("--only", default="", metavar="TEXT", help="what <environment>.<algorithm> contains")
    p.add_argument("--to", type=Path, default=CURVES, metavar="FILE", help="the CSV file of the curves")
    p.add_argument("--parallel", type=int, default=1, metavar="N", help="trainings at a time")
    given = p.parse_args()
    figures = Figures("solve", given.json)
    given.to.parent.mkdir(parents=True, exist_ok=True)
    goals = [goal for goal in GOALS if given.only in f"{goal.env}.{goal.algorithm}"]
    tasks = [(goal, seed, given.device) for goal in goals for seed in given.seeds]
    with given.to.open("w", newline="") as file, get_context("spawn").Pool(given.parallel) as pool:
        curves = csv.writer(file)
        curves.writerow(("env", "algorithm", "seed", "steps", "seconds", "return"))
        ready = pool.imap(solve, tasks)
        for goal in goals:
            solved = list(islice(ready, len(given.seeds)))
            for one in solved:
                curves.writerows((goal.env, goal.algorithm, one.seed, *point) for point in one.curve)
            report(figures, goal, solved)


def report(figures: Figures, goal: Goal, solved: list[Solved]) -> None:
    """Figures of all seeds."""
    name, of = f"{goal.env}.{goal.algorithm}", (goal.env, "vector", "learners")
    values, steps = [one.value for one in solved], [one.to_bar for one in solved]
    passed = sum(value >= goal.bar for value in values)
    details: dict[str, Any] = {"bar": goal.bar, "seeds": len(solved), "returns": [round(value, 1) for value in values]}
    figures.add(f"{name}.passed", passed, "seeds", of, **details)
    figures.add(f"{name}.lowest", min(values), "return", of)
    figures.add(f"{name}.mean", sum(values) / len(values), "return", of)
    if not any(map(math.isnan, steps)):
        figures.add(f"{name}.steps.median", sorted(steps)[len(steps) // 2] / 1e6, "M steps", of, bar=goal.bar)
        figures.add(f"{name}.steps.worst", max(steps) / 1e6, "M steps", of, bar=goal.bar)


if __name__ == "__main__":
    main()
