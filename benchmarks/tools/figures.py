"""Draws the results of benchmarks: from the CSV files in a folder, PNG files in the same folder.

    python benchmarks/tools/figures.py [FOLDER]

    scaling.png         throughput over the number of environments and over that of agents, with the roofline
    cpu_gpu.png         throughput of the same environments on a GPU and on a CPU
    time_to_return.png  return over wall clock time, a color for each number of environments, a line for each seed
    solve.png           return over env steps, a line for each seed
    game_training.png   the same for games with a grid, a group of agents or turns
    ppo_end_to_end.png  mean last return of PPO on CartPole, by fused kernels and by PyTorch operations, a line for each seed

A picture is left out if its CSV file is missing. Needs matplotlib, which the extra `plot` installs.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases import game_training, solve
from benchmarks.cases.ppo_end_to_end import TARGET
from benchmarks.cases.solve import Goal
from benchmarks.cases.time_to_return import BARS

Row = dict[str, str]
RESULTS = Path(__file__).resolve().parents[1] / "results"


def read_rows(file: Path) -> list[Row]:
    """Returns the rows of a CSV file."""
    with file.open() as table:
        return list(csv.DictReader(table))


def group_rates(rows: Iterable[Row], of: str) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """Groups the rows of the benchmark `scaling`, which are named <device>.<case>.<number>.

    Args:
        rows: all rows.
        of: what the number counts, "environments" or "agents"; the other rows are left out.

    Returns:
        {(device, case): [(number, rate, roofline)]}, rates in 1e9 per second, sorted by the number.
    """
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for row in rows:
        device, _, rest = row["name"].partition(".")
        case, _, number = rest.rpartition(".")
        if bool(row.get("agents")) is (of == "agents") and number.isdigit():
            points[device, case].append((float(number), float(row["value"]), float(row["roofline"])))
    return {key: sorted(values) for key, values in points.items()}


def label_log_axes(ax: Any, title: str, of: str, unit: str) -> None:
    """Sets logarithmic scales, the labels and the legend of `ax`.

    Args:
        ax: the axes.
        title: above them.
        of: what the horizontal axis counts.
        unit: of the vertical axis.
    """
    ax.set(title=title, xlabel=f"number of {of}", ylabel=unit, xscale="log", yscale="log")
    ax.grid(True, which="major", linewidth=0.3)
    ax.legend(fontsize=8)


def draw_scaling(pyplot: Any, folder: Path) -> Any:
    """Draws throughput on a GPU; `pyplot` is that of matplotlib, `folder` has the CSV file."""
    rows = read_rows(folder / "scaling.csv")
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    halves = {"environments": ("one agent each", "env steps/s (G)"), "agents": ("half a million in all", "agent steps/s (G)")}
    for ax, (of, (title, unit)) in zip(axes, halves.items(), strict=True):
        for (device, case), points in group_rates(rows, of).items():
            if device == "cuda":
                number, rate, roofline = zip(*points, strict=True)
                (line,) = ax.plot(number, rate, marker="o", markersize=3, label=case)
                ax.plot(number, roofline, color=line.get_color(), linestyle=":", linewidth=1)
        label_log_axes(ax, f"{title}; dotted: limit of the memory", of, unit)
    return figure


def draw_cpu_gpu(pyplot: Any, folder: Path) -> Any:
    """Draws throughput on both devices; `pyplot` is that of matplotlib, `folder` has the CSV file."""
    rates = group_rates(read_rows(folder / "scaling.csv"), "environments")
    figure, ax = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
    colors = {case: f"C{k}" for k, case in enumerate(dict.fromkeys(case for _, case in rates))}
    for (device, case), points in rates.items():
        number, rate, _ = zip(*points, strict=True)
        style = "-" if device == "cuda" else "--"
        ax.plot(number, rate, style, color=colors[case], marker="o", markersize=3, label=f"{case}, {device}")
    label_log_axes(ax, "one source on both devices", "environments", "env steps/s (G)")
    return figure


def group_curves(rows: Iterable[Row], x: str, *keys: str) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """Returns {(values of the columns `keys`, and the seed): [(column `x`, return)]} of `rows`."""
    curves: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        curves[(*(row[key] for key in keys), row["seed"])].append((float(row[x]), float(row["return"])))
    return curves


def draw_time_to_return(pyplot: Any, folder: Path) -> Any:
    """Draws returns over wall clock time; `pyplot` is that of matplotlib, `folder` has the CSV file."""
    curves = group_curves(read_rows(folder / "time_to_return.csv"), "seconds", "env", "envs")
    figure, axes = pyplot.subplots(1, len(BARS), figsize=(6 * len(BARS), 4.5), layout="constrained")
    for ax, (env, bar) in zip(axes, BARS.items(), strict=True):
        sizes = sorted({int(envs) for name, envs, _ in curves if name == env})
        for k, size in enumerate(sizes):
            seeds = [curve for (name, envs, _), curve in curves.items() if name == env and int(envs) == size]
            for j, curve in enumerate(seeds):
                label = None if j else f"{size:,} environments"
                ax.plot(*zip(*curve, strict=True), color=f"C{k}", linewidth=0.8, label=label)
        ax.axhline(bar, color="black", linewidth=0.8, linestyle=":")
        ax.set(title=f"{env}, PPO", xlabel="seconds", ylabel="return", xscale="log")
        ax.legend(fontsize=8)
    return figure


def draw_goals(pyplot: Any, file: Path, goals: Sequence[Goal]) -> Any:
    """Draws the curves of trainings over env steps.

    Args:
        pyplot: that of matplotlib.
        file: the CSV file of the curves.
        goals: the trainings; those without curves are left out.
    """
    curves = group_curves(read_rows(file), "steps", "env", "algorithm")
    goals = [goal for goal in goals if (goal.task, goal.algorithm) in {names[:2] for names in curves}]
    rows = -(-len(goals) // 3)
    figure, axes = pyplot.subplots(rows, 3, figsize=(12, 3 * rows), layout="constrained")
    for ax in axes.flat[len(goals) :]:
        ax.set_axis_off()
    for goal, ax in zip(goals, axes.flat, strict=False):
        for (env, algorithm, _), curve in curves.items():
            if (env, algorithm) == (goal.task, goal.algorithm):
                ax.plot([steps / 1e6 for steps, _ in curve], [value for _, value in curve], linewidth=0.8)
        ax.axhline(goal.bar, color="black", linewidth=0.8, linestyle=":")
        ylabel = "score" if goal.num_scores else "return"
        ax.set(title=f"{goal.task}, {goal.algorithm.upper()}", xlabel="env steps (M)", ylabel=ylabel)
    return figure


def draw_solve(pyplot: Any, folder: Path) -> Any:
    """Draws returns over env steps; `pyplot` is that of matplotlib, `folder` has the CSV file."""
    return draw_goals(pyplot, folder / "solve.csv", solve.GOALS)


def draw_game_training(pyplot: Any, folder: Path) -> Any:
    """Draws returns and scores over env steps; `pyplot` is that of matplotlib, `folder` has the CSV file."""
    return draw_goals(pyplot, folder / "game_training.csv", game_training.GOALS)


def draw_ppo_end_to_end(pyplot: Any, folder: Path) -> Any:
    """Draws both implementations of PPO over iterations and seconds; `pyplot` is matplotlib's, `folder` has the CSV file."""
    rows = read_rows(folder / "ppo_end_to_end.csv")
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for ax, x in zip(axes, ("iteration", "seconds"), strict=True):
        labelled: set[str] = set()
        for (implementation, _), curve in group_curves(rows, x, "way").items():
            label = None if implementation in labelled else implementation
            labelled.add(implementation)
            color = "C0" if implementation == "fused" else "C1"
            ax.plot(*zip(*curve, strict=True), color=color, linewidth=0.8, label=label)
        ax.axhline(TARGET, color="black", linewidth=0.8, linestyle=":")
        ax.set(xlabel=x, ylabel="mean of last returns", xscale="log" if x == "seconds" else "linear")
        ax.legend(fontsize=8)
    figure.suptitle(f"CartPole, PPO, {rows[0]['envs']} environments")
    return figure


PICTURES = {
    "scaling": draw_scaling,
    "cpu_gpu": draw_cpu_gpu,
    "time_to_return": draw_time_to_return,
    "solve": draw_solve,
    "game_training": draw_game_training,
    "ppo_end_to_end": draw_ppo_end_to_end,
}


def main() -> None:
    """Draws all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS, metavar="FOLDER")
    folder = parser.parse_args().folder

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    for name, draw in PICTURES.items():
        try:
            figure = draw(pyplot, folder)
        except FileNotFoundError as error:
            print(f"{name}.png is left out: there is no {error.filename}")
            continue
        figure.savefig(folder / f"{name}.png", dpi=80)
        pyplot.close(figure)


if __name__ == "__main__":
    main()
