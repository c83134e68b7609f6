"""A compiled run in a worker process, whose results are written to files, so that they remain if the process crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.backends.cpu.threads import CpuKernels
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import CompiledRun, make_run, random_actions, step_results
from gpuvec.testing.compiled_runs.role_rows import action_dtypes
from gpuvec.testing.compiled_runs.run_checks import check_equal_step
from gpuvec.testing.cpu_time import allow_cpu_time
from gpuvec.vector.env import VectorEnv

PROGRESS = "progress.npy"  # the number of results that are complete
ACTIONS = "actions.npy"


def record_run(
    env: Environment, folder: Path, *, num_envs: int, steps: int, limit: int | None, seed: int, time_limit: float
) -> str:
    """Runs with random actions and writes all results to a folder, then checks that the same seed repeats the results.

    Args:
        env: the environment.
        folder: the path of the folder.
        num_envs: the number of environments, E.
        steps: the number of steps, T.
        limit: the number of steps of an episode; None for no limit.
        seed: the seed of the environments and of the actions.
        time_limit: the CPU seconds that one call may take; a call that takes longer ends the process by SIGXCPU.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: the code cannot be compiled, or results depend on the call or on the number of environments.
    """
    actions = random_actions(env, steps, 2 * num_envs, seed)
    run_actions = np.lib.format.open_memmap(folder / ACTIONS, "w+", actions.dtype, actions[:, :num_envs].shape)
    run_actions[...] = actions[:, :num_envs]
    progress = np.lib.format.open_memmap(folder / PROGRESS, "w+", np.int64, (1,))
    files: dict[str, NDArray[Any]] = {}
    envs = _compiled_envs(env, num_envs, limit, actions)
    allow_cpu_time(time_limit)
    for t, results in enumerate(step_results(envs, run_actions, seed)):
        allow_cpu_time(time_limit)
        for name, array in results.items():
            if name not in files:
                shape, path = (steps + 1, *array.shape), folder / f"{name}.npy"
                files[name] = np.lib.format.open_memmap(path, "w+", array.dtype, shape)
            files[name][t] = array
        progress[0] = t + 1
    same_envs = f"two runs with seed {seed}", envs
    more_envs = f"runs of {num_envs} and of {2 * num_envs} environments", _compiled_envs(env, 2 * num_envs, limit, actions)
    for runs, others in (same_envs, more_envs):
        for t, results in enumerate(step_results(others, actions[:, : others.num_envs], seed)):
            allow_cpu_time(time_limit)
            first = {name: array[:num_envs] for name, array in results.items()}
            check_equal_step(env, t, {name: files[name][t] for name in first}, first, runs)
        others.close()
    return "a seed repeats its run, and results do not depend on the number of environments"


def _compiled_envs(env: Environment, num_envs: int, limit: int | None, actions: NDArray[Any]) -> VectorEnv:
    """Creates environments and compiles their kernels, so that the time limit of the first calls does not include that."""
    envs = VectorEnv(env, num_envs, device="cpu", output="numpy", max_episode_steps=limit)
    CpuKernels(env, num_envs).reset(envs.simulation.options)
    envs.simulation.step_launcher(action_dtypes(actions, envs.simulation.schema))
    return envs


def load_recorded_run(folder: Path, limit: int | None) -> CompiledRun | None:
    """Reads the results that `record_run` wrote, up to the last complete step.

    Args:
        folder: the path of the folder.
        limit: the number of steps of an episode; None for no limit.

    Returns:
        The run, or None if there are no results.
    """
    if not (folder / PROGRESS).exists():
        return None
    count = int(np.load(folder / PROGRESS)[0])
    paths = (path for path in folder.glob("*.npy") if path.name not in (PROGRESS, ACTIONS))
    files = {path.stem: np.load(path, mmap_mode="r") for path in paths}
    results = [{name: np.asarray(array[t]) for name, array in files.items()} for t in range(count)]
    return make_run(np.load(folder / ACTIONS), results, limit) if count else None
