"""Draws what the benchmarks found: from the CSV files in a folder, PNG files beside them.

    python benchmarks/tools/figures.py [FOLDER]

    scaling.png         throughput over the number of environments, and over that of agents, with the roofline
    cpu_gpu.png         the same environments on both devices
    time_to_return.png  return against wall clock, a colour for each number of environments, a line for each seed
    solve.png           return over env steps, a line for each seed
    ppo_end_to_end.png  mean last return of PPO on CartPole by fused kernels and by torch's operations, a line for each seed

A file whose figures are not there is left out. Needs matplotlib (the extra `plot`).
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.ppo_end_to_end import TARGET
from benchmarks.cases.solve import GOALS
from benchmarks.cases.time_to_return import BARS

Row = dict[str, str]
RESULTS = Path(__file__).resolve().parents[1] / "results"


def read(file: Path) -> list[Row]:
    """Its rows."""
    with file.open() as table:
        return list(csv.DictReader(table))


def series(rows: Iterable[Row], of: str) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """{(device, case): [(number of `of`, rate, roofline)]} of rows named <device>.<case>.<number>, in G per second."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows:
        device, _, rest = row["name"].partition(".")
        case, _, number = rest.rpartition(".")
        if bool(row.get("agents")) is (of == "agents") and number.isdigit():
            found[device, case].append((float(number), float(row["value"]), float(row["roofline"])))
    return {key: sorted(points) for key, points in found.items()}


def log_log(place: Any, title: str, of: str, unit: str) -> None:
    """Dresses the axes."""
    place.set(title=title, xlabel=f"number of {of}", ylabel=unit, xscale="log", yscale="log")
    place.grid(True, which="major", linewidth=0.3)
    place.legend(fontsize=8)


def scaling(pyplot: Any, folder: Path) -> Any:
    """Throughput on a GPU."""
    rows = read(folder / "scaling.csv")
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    halves = {"environments": ("one agent each", "env steps/s (G)"), "agents": ("half a million in all", "agent steps/s (G)")}
    for place, (of, (title, unit)) in zip(axes, halves.items(), strict=True):
        for (device, case), points in series(rows, of).items():
            if device == "cuda":
                number, rate, roofline = zip(*points, strict=True)
                (line,) = place.plot(number, rate, marker="o", markersize=3, label=case)
                place.plot(number, roofline, color=line.get_color(), linestyle=":", linewidth=1)
        log_log(place, f"{title}; dotted: what the memory allows", of, unit)
    return figure


def cpu_gpu(pyplot: Any, folder: Path) -> Any:
    """Throughput on both devices."""
    found = series(read(folder / "scaling.csv"), "environments")
    figure, place = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
    colors = {case: f"C{k}" for k, case in enumerate(dict.fromkeys(case for _, case in found))}
    for (device, case), points in found.items():
        number, rate, _ = zip(*points, strict=True)
        style = "-" if device == "cuda" else "--"
        place.plot(number, rate, style, color=colors[case], marker="o", markersize=3, label=f"{case}, {device}")
    log_log(place, "one source on both devices", "environments", "env steps/s (G)")
    return figure


def curves(rows: Iterable[Row], x: str, *keys: str) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """{key and seed: [(x, return)]}."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        found[(*(row[key] for key in keys), row["seed"])].append((float(row[x]), float(row["return"])))
    return found


def time_to_return(pyplot: Any, folder: Path) -> Any:
    """Return against wall clock."""
    lines = curves(read(folder / "time_to_return.csv"), "seconds", "env", "envs")
    figure, axes = pyplot.subplots(1, len(BARS), figsize=(6 * len(BARS), 4.5), layout="constrained")
    for place, (env, bar) in zip(axes, BARS.items(), strict=True):
        sizes = sorted({int(envs) for name, envs, _ in lines if name == env})
        for k, size in enumerate(sizes):
            seeds = [line for (name, envs, _), line in lines.items() if name == env and int(envs) == size]
            for j, line in enumerate(seeds):
                label = None if j else f"{size:,} environments"
                place.plot(*zip(*line, strict=True), color=f"C{k}", linewidth=0.8, label=label)
        place.axhline(bar, color="black", linewidth=0.8, linestyle=":")
        place.set(title=f"{env}, PPO", xlabel="seconds", ylabel="return", xscale="log")
        place.legend(fontsize=8)
    return figure


def solve(pyplot: Any, folder: Path) -> Any:
    """Return over env steps."""
    lines = curves(read(folder / "solve.csv"), "steps", "env", "algorithm")
    rows = -(-len(GOALS) // 3)
    figure, axes = pyplot.subplots(rows, 3, figsize=(12, 3 * rows), layout="constrained")
    for place in axes.flat[len(GOALS) :]:
        place.set_axis_off()
    for goal, place in zip(GOALS, axes.flat, strict=False):
        for (env, algorithm, _), line in lines.items():
            if (env, algorithm) == (goal.env, goal.algorithm):
                place.plot([steps / 1e6 for steps, _ in line], [value for _, value in line], linewidth=0.8)
        place.axhline(goal.bar, color="black", linewidth=0.8, linestyle=":")
        place.set(title=f"{goal.env}, {goal.algorithm.upper()}", xlabel="env steps (M)", ylabel="return")
    return figure


def ppo_end_to_end(pyplot: Any, folder: Path) -> Any:
    """The same learning in two ways, over iterations and over seconds."""
    rows = read(folder / "ppo_end_to_end.csv")
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for place, x in zip(axes, ("iteration", "seconds"), strict=True):
        labelled: set[str] = set()
        for (way, _), line in curves(rows, x, "way").items():
            label = None if way in labelled else way
            labelled.add(way)
            place.plot(*zip(*line, strict=True), color="C0" if way == "fused" else "C1", linewidth=0.8, label=label)
        place.axhline(TARGET, color="black", linewidth=0.8, linestyle=":")
        place.set(xlabel=x, ylabel="mean of last returns", xscale="log" if x == "seconds" else "linear")
        place.legend(fontsize=8)
    figure.suptitle(f"CartPole, PPO, {rows[0]['envs']} environments")
    return figure


DRAWN = {f.__name__: f for f in (scaling, cpu_gpu, time_to_return, solve, ppo_end_to_end)}


def main() -> None:
    """Draws all."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    for name, draw in DRAWN.items():
        try:
            figure = draw(pyplot, folder)
        except FileNotFoundError as error:
            print(f"{name}.png is left out: there is no {error.filename}")
            continue
        figure.savefig(folder / f"{name}.png", dpi=80)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
