"""Time in which PPO solves CartPole, and whether it stays solved: seeds by the fused kernels, and by torch's operations.

Solved is a mean over all environments of the last episode's return of 475, as for the peers; with T = 32 that takes 15
iterations at least. The learning rate is 5e-3 and stays so, so that what comes after is learning as well: `below` is the share
of the 100 iterations after the first at the target in which that mean is below 400, of all seeds together. Capture and
compilation are not counted. What a training ends with is evaluated over 100 episodes of the likeliest actions. Curves go into a
CSV file, from which `figures.py` draws. `learners.py` measures the throughput.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser

OF = ("CartPole-v1", "vector", "learners")
TARGET, LOW, AFTER, RATE = 475.0, 400.0, 100, 5e-3
WAYS: dict[str, Any] = {"fused": "auto", "torch": False}
CURVES = Path(__file__).resolve().parents[1] / "results" / "ppo_end_to_end.csv"


def first_at_target(history: Sequence[Mapping[str, float]]) -> int | None:
    """The index of the first iteration at the target."""
    return next((k for k, m in enumerate(history) if m["last_return"] >= TARGET), None)


def below(history: Sequence[Mapping[str, float]], first: int) -> list[bool]:
    """Of each of the `AFTER` iterations after the first at the target, whether it fell back."""
    return [m["last_return"] < LOW for m in history[first + 1 : first + 1 + AFTER]]


def main() -> None:
    """Measures all seeds."""
    p = make_parser(__doc__)
    p.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    p.add_argument("--seeds", type=int, default=8)
    p.add_argument("--num-envs", type=int, default=None, metavar="E")
    p.add_argument("--iterations", type=int, default=192, metavar="N")
    p.add_argument("--device", default="auto")
    p.add_argument("--to", type=Path, default=CURVES, metavar="FILE", help="the CSV file of the curves")
    given = p.parse_args()
    figures = Figures("ppo_end_to_end", given.json)
    given.to.parent.mkdir(parents=True, exist_ok=True)
    with given.to.open("w", newline="") as file:
        curves = csv.writer(file)
        curves.writerow(("way", "envs", "seed", "iteration", "seconds", "return"))
        for way in given.ways:
            measure(figures, given, way, curves)
            file.flush()


def measure(figures: Figures, given: Any, way: str, curves: Any) -> None:
    """All seeds of one way."""
    from gpuvec.learners.evaluation.evaluate import evaluate
    from gpuvec.learners.ppo import PPOArgs, train

    seconds: list[float] = []
    fallen: list[bool] = []
    for seed in range(1, given.seeds + 1):
        settings: dict[str, Any] = {"num_envs": given.num_envs, "num_iterations": given.iterations}
        result = train(
            PPOArgs(seed=seed, device=given.device, fused=WAYS[way], learning_rate=RATE, anneal_lr=False, **settings)
        )
        args, history = result.args, result.history
        case = str(args.num_envs) if way == "fused" else f"{args.num_envs}.{way}"
        points = ((int(m["iteration"]), f"{m['seconds']:.6f}", f"{m['last_return']:.5g}") for m in history)
        curves.writerows((way, args.num_envs, seed, *point) for point in points)
        returns = evaluate(result.network, args.env, seed=1000 + seed, device=args.device)
        shown = {"evaluated": float(returns.mean()), "whole": history[-1]["seconds"]}
        first = first_at_target(history)
        if first is None:
            figures.add_failure(f"{case}.seed{seed}", f"not solved in {len(history)} iterations, {shown}")
            continue
        seconds.append(history[first]["seconds"])
        fallen += below(history, first)
        shown |= {"iterations": first + 1, "steps": int(history[first]["steps"])}
        figures.add(f"{case}.seed{seed}", seconds[-1], "s", OF, **shown)
    if seconds:
        spread = {"fastest": min(seconds), "slowest": max(seconds), "solved": len(seconds), "seeds": given.seeds}
        figures.add(f"{case}.median", statistics.median(seconds), "s", OF, **spread)
        figures.add(f"{case}.slowest", max(seconds), "s", OF)
        figures.add(f"{case}.below", 100.0 * sum(fallen) / len(fallen), "%", OF, iterations=len(fallen), bar=LOW)


if __name__ == "__main__":
    main()
