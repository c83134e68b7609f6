"""`gpuvec check`."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import tyro

from gpuvec.errors import AuthoringError, GpuvecError
from gpuvec.spec import SingleAgentEnv

if TYPE_CHECKING:
    from gpuvec.testing.environment_check import Check
    from gpuvec.testing.target_check.target_comparison import Job, Report
    from gpuvec.testing.target_check.targets import Backend

WITHOUT_LIMIT = 1000  # steps of an episode in an environment that has no limit


def check(
    env: Annotated[str, tyro.conf.Positional],
    backends: str = "",
    num_envs: int | None = None,
    episodes: int | None = None,
    max_episode_steps: int | None = None,
    seed: int = 0,
    time_limit: float = 20.0,
    params: dict[str, bool | int | float] | None = None,
) -> int:
    """Check that an environment follows the rules of device code and behaves the same on every backend.

    First `gpuvec.testing.check_env` checks the code. Then each backend plays random actions beside the CPU, in every
    autoreset mode, and all outputs and states are compared after every call. The exit status is 0 if all agree, 1 for a
    difference or a broken rule, and 2 if the check cannot be made.

    Args:
        env: the id of the environment, such as gpuvec/CartPole-v1, or CartPole-v1 for one that comes with gpuvec. With
            module:id, the module is imported first.
        backends: names, separated by commas: cpu, cuda-c-cpu (the environment's functions in CUDA C++, compiled by the CPU's
            C++ compiler), sim (Numba's CUDA simulator), numba (a GPU), cuda-c (a GPU, with those functions). By default all
            that this machine has. Each is compared with cpu.
        num_envs: the number of environments. By default as many as have 4096 agents together, in the simulator 33, and 16 of
            an environment with many agents.
        episodes: the number of episodes of each environment, in each autoreset mode. By default 3, in the simulator 2.
        max_episode_steps: the step limit of an episode. By default the environment's own, in the simulator 3.
        seed: of the environments and of the actions.
        time_limit: CPU seconds that one call of a function of the environment may take before it counts as an endless loop.
        params: parameters of the environment that differ from its defaults, such as --params gravity 3.7.
    """
    from gpuvec.testing.environment_check import check_env, resolve
    from gpuvec.testing.target_check.target_comparison import Job
    from gpuvec.testing.target_check.targets import chosen

    given: dict[str, Any] = params or {}
    try:
        positive(num_envs=num_envs, episodes=episodes, max_episode_steps=max_episode_steps)
        within_range(seed, time_limit)
        spec = specified(env)
        declared = resolve(spec.id, given)
        asked, left_out = chosen([name for name in backends.split(",") if name], declared)
    except (GpuvecError, gym.error.Error, ImportError, TypeError, ValueError) as error:
        print(f"gpuvec check: {error}", file=sys.stderr)
        return 2
    try:
        print(f"rules        compiling and playing {spec.id} ...", flush=True)
        check_env(spec.id, seed=seed, time_limit=time_limit, progress=lambda one: print(line(one), flush=True), **given)
    except AuthoringError as error:
        print(f"rules        RED  {error}")
        return 1
    for name, why in left_out.items():
        print(f"{name:<12} left out: {why}", flush=True)
    single = isinstance(declared, SingleAgentEnv)
    agents = 1 if isinstance(declared, SingleAgentEnv) else declared.agents(declared.params)
    module, colon, _ = env.rpartition(":")
    jobs = [
        (backend, Job(
            id=f"{module}{colon}{spec.id}",
            backend=backend.name,
            options=backend.options,
            variables=backend.variables,
            num_envs=num_envs or max(1, (backend.agents if single else backend.agents_of_games) // agents),
            episodes=episodes or backend.episodes,
            max_episode_steps=max_episode_steps or backend.episode or spec.max_episode_steps or WITHOUT_LIMIT,
            seed=seed,
            params=given,
        )) for backend in asked
    ]  # fmt: skip
    return compare_with_cpu(jobs)


def compare_with_cpu(jobs: Sequence[tuple[Backend, Job]]) -> int:
    """Plays each job beside the CPU, one after the other, and prints what came of it; 1 if one is different."""
    from gpuvec.testing.target_check.target_process import compared

    red = 0
    for backend, job in jobs:
        print(f"{backend.name:<12} playing {job.num_envs} environments in {len(job.modes)} autoreset modes ...", flush=True)
        report = compared(job, os.cpu_count() or 1 if backend.simulated else 1)
        red = red or int(bool(report.difference))
        print(f"{backend.name:<12} {told(job, report)}", flush=True)
    return red


def within_range(seed: int, time_limit: float) -> None:
    """Raises ValueError for a seed that is none, or a time limit that leaves no time."""
    if not time_limit > 0:
        raise ValueError(f"time_limit must be greater than 0 CPU seconds, got {time_limit}.")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}.")


def line(check: Check) -> str:
    """A line on a rule that was checked, or could not be."""
    return f"{check.name:<12} {'ok  ' if check.ran else 'not run:'} {check.detail}"


def positive(**numbers: int | None) -> None:
    """Raises ValueError for one that is given and not at least 1."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")


def specified(env: str) -> gym.envs.registration.EnvSpec:
    """The spec of "id" or "module:id", where an id without a namespace may be one of gpuvec's own.

    Raises:
        gymnasium.error.Error: there is none; near ones are named.
        ModuleNotFoundError: there is no such module.
    """
    module, _, id = env.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(f"gpuvec/{id}" if f"gpuvec/{id}" in gym.registry else id)


def told(job: Job, report: Report) -> str:
    """A line on a backend; of a difference several, with a script."""
    if report.difference:
        script = f"\nTo see it again:\n\n{textwrap.indent(report.script, '    ')}" if report.script else ""
        return f"RED  {report.difference}{script}"
    how = "the same bits as cpu's" if report.identical else "as cpu's, floats to 1e-5"
    odd = f", but for {report.on_threshold} on a threshold, either side of which is right" if report.on_threshold else ""
    return f"ok   {report.results:,} results of {job.num_envs} environments in {len(job.modes)} autoreset modes: {how}{odd}"
