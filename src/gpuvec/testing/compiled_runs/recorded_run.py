"""Compiled play in a process of its own, whose results are in files: they are there even when that process crashes."""

from __future__ import annotations

import math
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.engine.backends.cpu.threads import CpuKernels
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import Run, as_run, random_actions, same_step, step_results
from gpuvec.vector.env import VectorEnv

PROGRESS = "progress.npy"  # how many results are complete


def record(
    env: Environment, folder: Path, *, num_envs: int, steps: int, limit: int | None, seed: int, time_limit: float
) -> str:
    """Plays random actions and writes all results to `folder`, then looks whether the same seed gives the same again.

    Args:
        env: the environment.
        folder: where to write.
        num_envs: E.
        steps: T.
        limit: steps of an episode; None for no limit.
        seed: of the rows and of the actions.
        time_limit: CPU seconds that one call may take; one that takes longer ends the process by SIGXCPU.

    Raises:
        AuthoringError: code that cannot be compiled, or results that depend on the call or on the number of rows.
    """
    actions = random_actions(env, steps, 2 * num_envs, seed)
    np.save(folder / "actions.npy", actions[:, :num_envs])
    progress = np.lib.format.open_memmap(folder / PROGRESS, "w+", np.int64, (1,))
    files: dict[str, Any] = {}
    rows = _ready(env, num_envs, limit, actions)
    _allow(time_limit)
    for t, results in enumerate(step_results(rows, actions[:, :num_envs], seed)):
        _allow(time_limit)
        for name, array in results.items():
            if name not in files:
                shape, path = (steps + 1, *array.shape), folder / f"{name}.npy"
                files[name] = np.lib.format.open_memmap(path, "w+", array.dtype, shape)
            files[name][t] = array
        progress[0] = t + 1
    again = f"two runs with seed {seed}", rows
    more = f"runs of {num_envs} and of {2 * num_envs} environments", _ready(env, 2 * num_envs, limit, actions)
    for which, others in (again, more):
        for t, results in enumerate(step_results(others, actions[:, : others.num_envs], seed)):
            _allow(time_limit)
            found = {name: array[:num_envs] for name, array in results.items()}
            same_step(env, t, {name: files[name][t] for name in found}, found, which)
        others.close()
    return "a seed repeats its run, and no row depends on how many there are"


def _ready(env: Environment, num_envs: int, limit: int | None, actions: Any) -> VectorEnv:
    """Environments whose kernels are compiled: that takes time which is no call's."""
    rows = VectorEnv(env, num_envs, device="cpu", output="numpy", max_episode_steps=limit)
    CpuKernels(env, num_envs).reset(rows.simulation.options)
    rows.simulation.step_launcher(rows.read_actions(np.ascontiguousarray(actions[0, :num_envs]), 0)[1])
    return rows


def _allow(time_limit: float) -> None:
    """Lets this process take that many CPU seconds from now on."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(time.process_time() + time_limit) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def recorded(folder: Path, limit: int | None) -> Run | None:
    """What `record` wrote to `folder`, as far as it came; None if there is no result."""
    if not (folder / PROGRESS).exists():
        return None
    count = int(np.load(folder / PROGRESS)[0])
    skipped = ("progress", "actions")
    files = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy") if path.stem not in skipped}
    results = [{name: np.asarray(array[t]) for name, array in files.items()} for t in range(count)]
    return as_run(np.load(folder / "actions.npy"), results, limit) if count else None
