"""The gate: which checks there are, and in which order."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import gymnasium as gym

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.errors import AuthoringError
from gpuvec.registration import load_env
from gpuvec.spec import Environment, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import Run, check_spaces, play, random_actions, same
from gpuvec.testing.compiled_runs.crash_explanation import explain
from gpuvec.testing.compiled_runs.recorded_run import record, recorded
from gpuvec.testing.cuda_cpp_check import check_source, check_values
from gpuvec.testing.kernel_check import compile_kernels, missing_compiler
from gpuvec.testing.races.race_check import STEPS, check_races, check_races_from
from gpuvec.testing.reference.python_reference import plainly
from gpuvec.testing.reference.time_limit import limited_calls
from gpuvec.testing.reference_check import check_plain
from gpuvec.testing.run_size import extent
from gpuvec.testing.structural_check import check_structural
from gpuvec.testing.type_check import multi_agent_types
from gpuvec.testing.type_check import single_agent_types as single
from gpuvec.testing.worker_process import Worker, WorkerError
from gpuvec.vector.env_params import apply_params

TIME_LIMIT = 20.0  # CPU seconds; a call takes milliseconds
SIMULATED_ENVS, SIMULATED_STEPS = 5, 12  # a simulated thread is a thread of Python


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ran: bool
    detail: str  # what was found, or what it takes to run this check


class Gate:
    """The checks of one environment that are done, each of which is reported when it is."""

    def __init__(self, progress: Callable[[Check], None] | None) -> None:
        self.checks: list[Check] = []
        self._progress = progress

    def add(self, name: str, detail: str, ran: bool = True) -> None:
        """Notes a check that found no fault, or that could not run."""
        self.checks.append(Check(name, ran, detail))
        if self._progress is not None:
            self._progress(self.checks[-1])


def check_env(
    env: Environment | str,
    num_envs: int = 33,
    steps: int | None = None,
    seed: int = 0,
    *,
    kernels: bool = True,
    time_limit: float = TIME_LIMIT,
    progress: Callable[[Check], None] | None = None,
    **params: Any,
) -> list[Check]:
    """Checks an environment: its types, draws, spaces and seeds, and that it does the same wherever it runs.

    Compiled play goes to the end of episodes and beyond. Moments of it, those with rare states first, are played again as
    plain Python, in which every index, integer divisor, shift and draw is checked. Of a `MultiAgentEnv` it also checks that
    agents write their own elements alone, that no order of agents matters, and that `reset` leaves nothing of the last episode.

    Args:
        env: the environment, its place as "module:NAME", or its id.
        num_envs: E, the rows that are played with random actions; of games that are too large for it fewer are.
        steps: T, the steps that are played; by default as many as an episode has and a quarter more. With fewer, episodes are
            truncated so that each row is reset several times.
        seed: of the rows and of the actions.
        kernels: whether to compile them for a GPU, where that can be done.
        time_limit: CPU seconds that one call of a function, or one compiled step of all rows, may take.
        progress: called with each check that is done.
        params: parameters of the environment, other than its defaults.

    Returns:
        What was checked, and which checks could not run here and why.

    Raises:
        AuthoringError: the first fault, with its place and the remedy.
        ValueError: `num_envs` or `steps` below 1, or `time_limit` not above 0.
    """
    for name, value in {"num_envs": num_envs, "steps": steps}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}.")
    if not time_limit > 0:
        raise ValueError(f"time_limit must be greater than 0 CPU seconds, got {time_limit!r}.")
    env = resolve(env, params)
    gate = Gate(progress)
    rows, length, limit = extent(env, num_envs, steps)
    options = {"num_envs": rows, "steps": length, "limit": limit, "seed": seed, "time_limit": time_limit}
    missing = missing_compiler() if kernels else "left out by kernels=False"
    gate.add("parameters", check_structural(env))
    with (
        limited_calls(plainly, time_limit),
        Worker(record, env, **options) as player,  # both compile while this process looks at the functions
        nullcontext() if missing else Worker(compile_kernels, env) as compiler,
    ):
        _check_functions(gate, env, seed)
        try:
            seeds = player.answer()
        except WorkerError as error:
            explain(env, recorded(player.folder, limit), error, rows, seed, time_limit)
        _check_run(gate, env, recorded(player.folder, limit), seed)
        gate.add("seeds", seeds)
        _check_simulator(gate, env, seed)
        _check_cuda_c(gate, env, seed, compiles=compiler is not None)
        gate.add("sm_90", compiler.answer() if compiler is not None else missing, ran=compiler is not None)
    return gate.checks


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
    return apply_params(load_env(env), params, (), 1)[0]


def _check_functions(gate: Gate, env: Environment, seed: int) -> None:
    """What the author's functions show by themselves."""
    if isinstance(env, SingleAgentEnv):
        gate.add("types", single.check_types(env))
        gate.add("draws", single.check_draws(env))
        return
    gate.add("types", multi_agent_types.check_types(env))
    for name, found in check_races(env, STEPS, seed).items():
        gate.add(name, found)


def _check_run(gate: Gate, env: Environment, run: Run | None, seed: int) -> None:
    """What compiled play shows."""
    assert run is not None, "the process that played has answered"
    gate.add("spaces", check_spaces(env, run))
    if not isinstance(env, SingleAgentEnv):
        gate.add("rare states", check_races_from(env, run, seed))
    gate.add("plain Python", check_plain(env, run, seed))


def _check_cuda_c(gate: Gate, env: Environment, seed: int, compiles: bool) -> None:
    """The functions in CUDA C++, if there are any; in this process, which shows the warnings of their compilers."""
    if env.cuda_c is None or numba_cuda.SIMULATED:
        return
    if compiles:
        check_source(env)
    ran, found = check_values(env, seed)
    gate.add("CUDA C++", found, ran)


def _check_simulator(gate: Gate, env: Environment, seed: int) -> None:
    """Few rows and steps in Numba's CUDA simulator, where this process has it."""
    if not numba_cuda.SIMULATED:
        gate.add("simulator", "set NUMBA_ENABLE_CUDASIM=1 before Python starts, in a process of its own", ran=False)
        return
    actions = random_actions(env, SIMULATED_STEPS, SIMULATED_ENVS, seed)
    run, other = (play(env, SIMULATED_ENVS, actions, (seed,), device)[0] for device in ("cpu", "simulator"))
    same(env, run, other, "the CPU and the CUDA simulator")
    gate.add("simulator", "equals the CPU bit for bit")
