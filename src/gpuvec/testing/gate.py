"""The gate: which checks there are, and in which order."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import gymnasium as gym

from gpuvec.engine import cuda
from gpuvec.errors import AuthoringError
from gpuvec.registration import load_env
from gpuvec.spec import Environment, Single
from gpuvec.testing import cooperative, single
from gpuvec.testing.comparison import check_plain
from gpuvec.testing.kernels import check_kernels
from gpuvec.testing.rehearsal import rehearse
from gpuvec.testing.runs import check_spaces, play, random_actions, same
from gpuvec.vector.parameters import apply


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ran: bool
    detail: str  # what was found, or what it takes to run this check


def check_env(
    env: Environment | str, num_envs: int = 33, steps: int = 64, seed: int = 0, *, kernels: bool = True, **params: Any
) -> list[Check]:
    """Checks an environment: its types, draws, spaces and seeds, and that it does the same wherever it runs.

    Of a `Cooperative` it also checks that agents write their own elements alone, that no order of agents matters, and that
    `reset` leaves nothing of the last episode.

    Args:
        env: the environment, its place as "module:NAME", or its id.
        num_envs: E, the rows that are played with random actions.
        steps: T, the steps that are played; episodes are truncated so that each row is reset several times.
        seed: of the rows and of the actions.
        kernels: whether to compile them for a GPU, where that can be done; of all checks it takes the longest.
        params: parameters of the environment, other than its defaults.

    Returns:
        What was checked, and which checks could not run here and why.

    Raises:
        AuthoringError: the first fault, with its place and the remedy.
        ValueError: `num_envs` or `steps` below 1.
    """
    for name, value in {"num_envs": num_envs, "steps": steps}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}.")
    env = resolve(env, params)
    return _check_functions(env, steps, seed) + _check_runs(env, num_envs, steps, seed, kernels)


def resolve(env: Environment | str, params: dict[str, Any]) -> Environment:
    """The environment, also named by its place or its id, with these parameters.

    Raises:
        AuthoringError, gymnasium.error.Error: there is none.
        UnknownParameterError, TypeError, ValueError: parameters that it does not take.
    """
    if isinstance(env, str) and not re.fullmatch(r"[\w.]+:\w+", env):  # an id has a version or a namespace
        kwargs = gym.spec(env).kwargs
        if "env" not in kwargs:
            raise AuthoringError(f"{env!r} is no gpuvec environment; register one with gpuvec.register(id, env).")
        env = load_env(kwargs["env"])
        params = {k: v for k, v in kwargs.items() if k in env.params._fields} | params
    return apply(load_env(env), params, (), 1)[0]


def _check_functions(env: Environment, steps: int, seed: int) -> list[Check]:
    """What the author's functions show by themselves."""
    if isinstance(env, Single):
        return [Check("types", True, single.check_types(env)), Check("draws", True, single.check_draws(env))]
    types = Check("types", True, cooperative.check_types(env))
    return [types, *(Check(name, True, found) for name, found in rehearse(env, steps, seed).items())]


def _check_runs(env: Environment, num_envs: int, steps: int, seed: int, kernels: bool) -> list[Check]:
    """What compiled runs show."""
    actions = random_actions(env, steps, 2 * num_envs, seed)
    run, again = play(env, num_envs, actions, (seed, seed))
    checks = [Check("spaces", True, check_spaces(env, run)), Check("plain Python", True, check_plain(env, run, seed))]
    same(env, run, again, f"two runs with seed {seed}")
    same(env, run, play(env, 2 * num_envs, actions, (seed,))[0], f"runs of {num_envs} and of {2 * num_envs} environments")
    checks.append(Check("seeds", True, "a seed repeats its run, and no row depends on how many there are"))
    if cuda.SIMULATED:
        same(env, run, play(env, num_envs, actions, (seed,), "simulator")[0], "the CPU and the CUDA simulator")
    todo = "set NUMBA_ENABLE_CUDASIM=1 before Python starts, in a process of its own"
    checks.append(Check("simulator", cuda.SIMULATED, "equals the CPU bit for bit" if cuda.SIMULATED else todo))
    return [*checks, Check("sm_90", *(check_kernels(env) if kernels else (False, "left out by kernels=False")))]
