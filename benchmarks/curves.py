"""Draws the learning curves in benchmarks/results: return over env steps, a line for each seed, as one PNG.

    python benchmarks/curves.py [FOLDER]

Needs matplotlib.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

from solve import GOALS


def main() -> None:
    """Draws what is there."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("results")
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), layout="constrained")
    for goal, place in zip(GOALS, axes.flat, strict=True):
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        with (folder / f"{goal.env}.{goal.algorithm}.csv").open() as file:
            for row in csv.DictReader(file):
                lines[row["seed"]].append((int(row["steps"]) / 1e6, float(row["return"])))
        for line in lines.values():
            place.plot(*zip(*line, strict=True), linewidth=0.8)
        place.axhline(goal.bar, color="black", linewidth=0.8, linestyle=":")
        place.set(title=f"{goal.env}, {goal.algorithm.upper()}", xlabel="env steps (M)", ylabel="return")
    figure.savefig(folder / "curves.png", dpi=80)


if __name__ == "__main__":
    main()
