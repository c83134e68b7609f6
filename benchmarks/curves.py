"""Draws the learning curves that `solve.py` wrote: return over env steps, a line for each seed, into a PNG beside the CSV file.

    python benchmarks/curves.py [FILE]

Needs matplotlib (the extra `plot`).
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

from solve import CURVES, GOALS


def main() -> None:
    """Draws all goals."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    file = Path(sys.argv[1]) if len(sys.argv) > 1 else CURVES
    lines: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with file.open() as table:
        for row in csv.DictReader(table):
            lines[row["env"], row["algorithm"]][row["seed"]].append((int(row["steps"]) / 1e6, float(row["return"])))
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), layout="constrained")
    for goal, place in zip(GOALS, axes.flat, strict=True):
        for line in lines[goal.env, goal.algorithm].values():
            place.plot(*zip(*line, strict=True), linewidth=0.8)
        place.axhline(goal.bar, color="black", linewidth=0.8, linestyle=":")
        place.set(title=f"{goal.env}, {goal.algorithm.upper()}", xlabel="env steps (M)", ylabel="return")
    figure.savefig(file.with_suffix(".png"), dpi=80)


if __name__ == "__main__":
    main()
