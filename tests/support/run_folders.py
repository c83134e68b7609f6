"""Run folders with chosen metrics, for tests of what reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuvec.learners.runs.run_writer import RunWriter

STEPS = 100  # of each iteration, which takes half a second


def write_run(
    folder: Path,
    seed: int,
    columns: Mapping[str, Sequence[float]],
    env: str = "gpuvec/CartPole-v1",
    algorithm: str = "ppo",
    evaluated: float | None = None,
    **settings: Any,
) -> Path:
    """Writes a run with these metrics, one number for each iteration, and returns its path."""
    args = {"env": env, "seed": seed, "num_envs": 10, "num_steps": 10, "total_steps": 400, "device": "cpu", **settings}
    run = RunWriter.new(folder, algorithm, args)
    for iteration, values in enumerate(zip(*columns.values(), strict=True), 1):
        progress = {"iteration": iteration, "steps": STEPS * iteration, "seconds": iteration / 2 + 10, "steps_per_second": 9.0}
        run.log({**progress, "gpu_memory": 0.0, **dict(zip(columns, values, strict=True))})
    if evaluated is not None:
        run.finish({"mean_return": evaluated})
    run.close()
    return run.path


def write_compared_runs(folder: Path) -> Path:
    """Runs of CartPole with two learning rates, of three seeds and of one, and one run with two roles."""
    for seed in (1, 2, 3):
        columns = {"return": [float(seed), 480.0 * seed], "eval_return": [math.nan, 480.0 * seed]}
        write_run(folder, seed, columns, evaluated=100.0 * seed, learning_rate=0.1, evaluate_params={})
    write_run(folder, 1, {"return": [5.0, 6.0], "eval_return": [5.0, 6.0]}, learning_rate=0.2, evaluate_params={})
    write_run(folder, 1, {"wolves/return": [1.0, 2.0], "sheep/return": [3.0, 4.0]}, env="gpuvec/Predators-v0")
    return folder
