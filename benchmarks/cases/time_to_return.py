"""Return over wall clock time with 10, 100, 1,000 and 10,000 environments: PPO on CartPole and Acrobot.

The settings are those tuned for a GPU. Only the number of environments differs, and the number of iterations, which is smaller
for larger rollouts. Capture, compilation and evaluations do not count. A curve has the evaluations of a training: mean returns
of 32 whole episodes of the policy at that time, with drawn actions and the environment's own parameters. The training ends with
the first one at the bar, and the figure is the time until then. All curves are written to one CSV file, from which `figures.py`
draws.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.solve import make_curve, with_evaluations
from benchmarks.tools.measure import Figures, make_parser

BARS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}  # mean returns
ITERATIONS = {10: 2000, 100: 1000, 1000: 400, 10_000: 128}  # by number of environments: of a training that misses the bar
CURVES = Path(__file__).resolve().parents[1] / "results" / "time_to_return.csv"


def train(env: str, num_envs: int, iterations: int, seed: int, device: str) -> list[dict[str, float]]:
    """Returns the metrics of each iteration of a training, which ends with an evaluation at the bar.

    Args:
        env: the name of the environment.
        num_envs: E.
        iterations: how many there are.
        seed: of the training.
        device: "auto", "cpu" or "cuda".
    """
    from gpuvec.engine.backends.device import parse_device
    from gpuvec.learners import training
    from gpuvec.learners.config.tuned import TUNED_SETTINGS, tuned

    settings: dict[str, Any] = {**TUNED_SETTINGS[f"gpuvec/{env}", "ppo"].gpu}
    settings |= {"num_envs": num_envs, "num_iterations": iterations, "target_return": BARS[env]}
    args = tuned(f"gpuvec/{env}", device, **settings, seed=seed).resolved(str(parse_device(device)))
    return training.train(with_evaluations(args)).history


def measure(figures: Figures, env: str, num_envs: int, arguments: Any, curves: Any) -> None:
    """Trains with all seeds.

    Args:
        figures: where the rows are added.
        env: the name of the environment.
        num_envs: E.
        arguments: of the command line.
        curves: writer of the CSV file.
    """
    iterations = arguments.iterations or ITERATIONS.get(num_envs, 128)
    seconds, case, sources = [], f"{env}.{num_envs}", (env, "vector", "learners")
    for seed in arguments.seeds:
        try:
            history = train(env, num_envs, iterations, seed, arguments.device)
        except Exception as error:  # noqa: BLE001  # a training that fails must not stop the others
            figures.add_failure(f"{case}.seed{seed}", error)
            continue
        points = make_curve(history)
        curves.writerows((env, num_envs, seed, *point) for point in points)
        seconds += [metrics["seconds"] for metrics in history if metrics["eval_return"] >= BARS[env]][:1]
        last = history[-1]
        details: dict[str, Any] = {"seconds": last["seconds"], "eval_return": float(points[-1][2])}
        figures.add(f"{case}.seed{seed}", last["steps"] / last["seconds"] / 1e6, "M steps/s", sources, **details)
    if len(seconds) == len(arguments.seeds) > 0:
        details = {"seeds": len(seconds), "bar": BARS[env], "slowest": max(seconds)}
        figures.add(f"{case}.policy_seconds", statistics.median(seconds), "s", sources, **details)


def main() -> None:
    """Trains with all numbers of environments."""
    parser = make_parser(__doc__)
    parser.add_argument("--envs", nargs="*", default=list(BARS), choices=list(BARS), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, default=list(ITERATIONS), metavar="E")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, metavar="N", help="of each training")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--to", type=Path, default=CURVES, metavar="FILE", help="the CSV file of the curves")
    arguments = parser.parse_args()
    figures = Figures("time_to_return", arguments.json)
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    with arguments.to.open("w", newline="") as file:
        curves = csv.writer(file)
        curves.writerow(("env", "envs", "seed", "steps", "seconds", "return"))
        for env in arguments.envs:
            for num_envs in arguments.sizes:
                measure(figures, env, num_envs, arguments, curves)
                file.flush()


if __name__ == "__main__":
    main()
