"""Time in which PPO solves CartPole, and whether it stays solved, with fused kernels and with PyTorch operations.

CartPole is solved when the mean over all environments of the last episode's return is 475, as for the other libraries; with
T = 32 that takes 15 iterations at least. The learning rate is 5e-3 and constant, so that training continues after that: `below`
is the share of the 100 iterations after the first one at the target in which the mean is below 400, over all seeds. Capture and
compilation do not count. The final policy is evaluated over 100 episodes with the most probable actions. The curves are written
to a CSV file, from which `figures.py` draws. `learners.py` measures the throughput.
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

SOURCES = ("CartPole-v1", "vector", "learners")
TARGET = 475.0  # mean return
LOW = 400.0  # mean return
ITERATIONS_AFTER = 100
LEARNING_RATE = 5e-3
IMPLEMENTATIONS: dict[str, Any] = {"fused": "auto", "torch": False}  # values of `PPOArgs.fused`
CURVES = Path(__file__).resolve().parents[1] / "results" / "ppo_end_to_end.csv"


def first_at_target(history: Sequence[Mapping[str, float]]) -> int | None:
    """Returns the index of the first iteration of a `history` at the target, or None."""
    has_all = (metrics["last_return_share"] == 1.0 for metrics in history)  # environments; before, short episodes are preferred
    reached = (metrics["last_return"] >= TARGET for metrics in history)
    return next((k for k, (counts, is_reached) in enumerate(zip(has_all, reached, strict=True)) if counts and is_reached), None)


def is_below(history: Sequence[Mapping[str, float]], first: int) -> list[bool]:
    """Returns whether the mean return was low in each of the iterations after the first one at the target.

    Args:
        history: the metrics of all iterations.
        first: the index of the first iteration at the target.
    """
    return [metrics["last_return"] < LOW for metrics in history[first + 1 : first + 1 + ITERATIONS_AFTER]]


def measure(figures: Figures, implementation: str, arguments: Any, curves: Any) -> None:
    """Trains with all seeds.

    Args:
        figures: where the rows are added.
        implementation: one of `IMPLEMENTATIONS`.
        arguments: of the command line.
        curves: writer of the CSV file.
    """
    from gpuvec.learners.evaluation.evaluate import evaluate
    from gpuvec.learners.ppo import PPOArgs, train

    seconds: list[float] = []
    is_low: list[bool] = []
    settings: dict[str, Any] = {"num_envs": arguments.num_envs, "num_iterations": arguments.iterations}
    settings |= {"device": arguments.device, "fused": IMPLEMENTATIONS[implementation]}
    for seed in range(1, arguments.seeds + 1):
        result = train(PPOArgs(seed=seed, learning_rate=LEARNING_RATE, anneal_lr=False, **settings))
        args, history = result.args, result.history
        case = str(args.num_envs) if implementation == "fused" else f"{args.num_envs}.{implementation}"
        points = ((int(m["iteration"]), f"{m['seconds']:.6f}", f"{m['last_return']:.5g}") for m in history)
        curves.writerows((implementation, args.num_envs, seed, *point) for point in points)
        returns = evaluate(result.network, args.env, seed=1000 + seed, device=args.device)
        details = {"evaluated": float(returns.mean()), "whole": history[-1]["seconds"]}
        first = first_at_target(history)
        if first is None:
            figures.add_failure(f"{case}.seed{seed}", f"not solved in {len(history)} iterations, {details}")
            continue
        seconds.append(history[first]["seconds"])
        is_low += is_below(history, first)
        details |= {"iterations": first + 1, "steps": int(history[first]["steps"])}
        figures.add(f"{case}.seed{seed}", seconds[-1], "s", SOURCES, **details)
    if seconds:
        details = {"fastest": min(seconds), "slowest": max(seconds), "solved": len(seconds), "seeds": arguments.seeds}
        figures.add(f"{case}.median", statistics.median(seconds), "s", SOURCES, **details)
        figures.add(f"{case}.slowest", max(seconds), "s", SOURCES)
        figures.add(f"{case}.below", 100.0 * sum(is_low) / len(is_low), "%", SOURCES, iterations=len(is_low), bar=LOW)


def main() -> None:
    """Measures each implementation."""
    parser = make_parser(__doc__)
    parser.add_argument("--ways", nargs="*", choices=list(IMPLEMENTATIONS), default=list(IMPLEMENTATIONS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--num-envs", type=int, metavar="E")
    parser.add_argument("--iterations", type=int, default=192, metavar="N")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--to", type=Path, default=CURVES, metavar="FILE", help="the CSV file of the curves")
    arguments = parser.parse_args()
    figures = Figures("ppo_end_to_end", arguments.json)
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    with arguments.to.open("w", newline="") as file:
        curves = csv.writer(file)
        curves.writerow(("way", "envs", "seed", "iteration", "seconds", "return"))
        for implementation in arguments.ways:
            measure(figures, implementation, arguments, curves)
            file.flush()


if __name__ == "__main__":
    main()
