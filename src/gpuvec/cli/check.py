"""`gpuvec check`."""

from __future__ import annotations

import importlib
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import tyro

from gpuvec.errors import AuthoringError, GpuvecError
from gpuvec.spec import Single

if TYPE_CHECKING:
    from gpuvec.testing.consistency import Job, Report

WITHOUT_LIMIT = 1000  # steps of an episode in an environment that has no limit


def check(
    env: Annotated[str, tyro.conf.Positional],
    backends: str = "",
    num_envs: int | None = None,
    episodes: int = 3,
    max_episode_steps: int | None = None,
    seed: int = 0,
    params: dict[str, bool | int | float] | None = None,
) -> int:
    """Check that an environment follows the rules of device code and behaves the same on every backend.

    First `gpuvec.testing.check_env` checks the code. Then each backend plays random actions beside the CPU, in every
    autoreset mode, and all outputs and states are compared after every call. The exit status is 0 if all agree, 1 for a
    difference or a broken rule, and 2 if the check cannot be made.

    Args:
        env: the id of the environment, such as gpuvec/CartPole-v1, or CartPole-v1 for one that comes with gpuvec. With
            module:id, the module is imported first.
        backends: names, separated by commas: cpu, sim (Numba's CUDA simulator), numba (a GPU), cuda-c (a GPU, with the
            environment's functions in CUDA C++). By default all that this machine has. Each is compared with cpu.
        num_envs: the number of environments. By default as many as have 4096 agents together, in the simulator 33.
        episodes: the number of episodes of each environment, in each autoreset mode.
        max_episode_steps: the step limit of an episode. By default the environment's own, in the simulator 3.
        seed: of the environments and of the actions.
        params: parameters of the environment that differ from its defaults, such as --params gravity 3.7.
    """
    from gpuvec.testing.backends import chosen
    from gpuvec.testing.consistency import Job
    from gpuvec.testing.gate import check_env, resolve
    from gpuvec.testing.process import compared

    given: dict[str, Any] = params or {}
    try:
        positive(num_envs=num_envs, episodes=episodes, max_episode_steps=max_episode_steps)
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}.")
        spec = specified(env)
        declared = resolve(spec.id, given)
        asked, left_out = chosen([name for name in backends.split(",") if name], declared)
    except (GpuvecError, gym.error.Error, ImportError, TypeError, ValueError) as error:
        print(f"gpuvec check: {error}", file=sys.stderr)
        return 2
    try:
        checks = check_env(spec.id, seed=seed, **given)
    except AuthoringError as error:
        print(f"rules     RED  {error}")
        return 1
    print(f"rules     ok   {', '.join(one.name for one in checks if one.ran)}", flush=True)
    for name, why in left_out.items():
        print(f"{name:<9} left out: {why}", flush=True)
    agents = 1 if isinstance(declared, Single) else declared.agents(declared.params)
    module, colon, _ = env.rpartition(":")
    red = 0
    for backend in asked:
        job = Job(
            id=f"{module}{colon}{spec.id}",
            backend=backend.name,
            options=backend.options,
            variables=backend.variables,
            num_envs=num_envs or max(1, backend.agents // agents),
            episodes=episodes,
            max_episode_steps=max_episode_steps or backend.episode or spec.max_episode_steps or WITHOUT_LIMIT,
            seed=seed,
            params=given,
        )
        report = compared(job)
        red = red or int(bool(report.difference))
        print(f"{backend.name:<9} {told(job, report)}", flush=True)
    return red


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
