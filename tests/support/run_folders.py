"""Run folders with chosen metrics, for tests of what reads them."""

from __future__ import annotations

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
