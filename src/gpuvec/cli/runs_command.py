"""The command `gpuvec runs`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import tyro

from gpuvec.cli.terminal import print_lines, print_table


def runs(folder: Annotated[Path, tyro.conf.Positional] = Path("runs")) -> int:
    """List the training runs in a folder with their results, the newest last.

    The return is that of the evaluation at the end, or of the last episodes in training if the run is not complete.
    The state is running, stopped (`gpuvec resume` continues it), complete, or damaged. A population has its number of agents in
    place of a seed, and the mean of their returns. A search has its number of trials, its parts in place of iterations, and the
    return of the best settings on fresh seeds.

    Args:
        folder: the folder that contains the run folders.
    """
    from gpuvec.learners.runs.history import summarize_runs

    rows = [
        (
            *(run.path.name, run.env, run.algorithm, run.seed),
            f"{run.iteration}/{run.num_iterations or '?'}",
            "none yet" if math.isnan(run.mean_return) else f"{run.mean_return:.1f}",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.modification_time)),
            run.state,
        )
        for run in summarize_runs(folder)
    ]
    if not rows:
        print_lines(f"no runs in {folder}")
        return 0
    print_table([("run", "environment", "algorithm", "seed", "iterations", "return", "last change", "state"), *rows])
    return 0
