"""Return against wall clock, for 10, 100, 1,000 and 10,000 environments: PPO on CartPole and Acrobot.

The settings are the tuned ones of a GPU; only the number of environments differs, and the iterations, which shrink as rollouts
grow. Capture and compilation are not counted. A curve is the mean return of the episodes that ended in an iteration, in the
environment that is trained in (Acrobot's starts are in motion there); all go into one CSV file, from which `figures.py` draws.
The figure is the time until the mean over all environments of the last episode's return was at the bar.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.solve import curve
from benchmarks.tools.measure import Figures, make_parser

BARS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0}
ITERATIONS = {10: 2000, 100: 1000, 1000: 400, 10_000: 128}  # a few seconds each
CURVES = Path(__file__).resolve().parents[1] / "results" / "time_to_return.csv"


def trained(env: str, num_envs: int, iterations: int, seed: int, device: str) -> Any:
    """The history of a training."""
    from gpuvec.learners.config.tuned import TUNED_SETTINGS, tuned
    from gpuvec.learners.training import train

    settings = {**TUNED_SETTINGS[f"gpuvec/{env}", "ppo"].gpu, "num_envs": num_envs, "num_iterations": iterations}
    args: Any = tuned(f"gpuvec/{env}", device, **settings, seed=seed)
    return train(args).history


def main() -> None:
    """Trains with all sizes and seeds."""
    p = make_parser(__doc__)
    p.add_argument("--envs", nargs="*", default=list(BARS), choices=list(BARS), metavar="NAME")
    p.add_argument("--sizes", nargs="*", type=int, default=list(ITERATIONS), metavar="E")
    p.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    p.add_argument("--iterations", type=int, default=None, metavar="N", help="of each training")
    p.add_argument("--device", default="auto")
    p.add_argument("--to", type=Path, default=CURVES, metavar="FILE", help="the CSV file of the curves")
    given = p.parse_args()
    figures = Figures("time_to_return", given.json)
    given.to.parent.mkdir(parents=True, exist_ok=True)
    with given.to.open("w", newline="") as file:
        curves = csv.writer(file)
        curves.writerow(("env", "envs", "seed", "steps", "seconds", "return"))
        for env in given.envs:
            for num_envs in given.sizes:
                iterations = given.iterations or ITERATIONS.get(num_envs, 128)
                reached, case = [], f"{env}.{num_envs}"
                for seed in given.seeds:
                    try:
                        history = trained(env, num_envs, iterations, seed, given.device)
                    except Exception as error:  # noqa: BLE001  # one training that fails must not cost the others
                        figures.add_failure(f"{case}.seed{seed}", error)
                        continue
                    curves.writerows((env, num_envs, seed, *point) for point in curve(history))
                    file.flush()
                    reached += [m["seconds"] for m in history if m["last_return"] >= BARS[env]][:1]
                    last = history[-1]
                    details = {"seconds": last["seconds"], "last_return": last["last_return"]}
                    of = (f"{env}", "vector", "learners")
                    figures.add(f"{case}.seed{seed}", last["steps"] / last["seconds"] / 1e6, "M steps/s", of, **details)
                if len(reached) == len(given.seeds) > 0:
                    details = {"seeds": len(reached), "bar": BARS[env], "slowest": max(reached)}
                    figures.add(f"{case}.seconds", statistics.median(reached), "s", (env, "vector", "learners"), **details)


if __name__ == "__main__":
    main()
