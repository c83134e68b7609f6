"""`check_env`, which runs all checks of an environment in their order."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import compile_source
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at, explain_env_errors, step_function
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema, default_action_dtype
from gpuvec.engine.layout.structure import shape_differences
from gpuvec.errors import AuthoringError, MissingExtraError, install_command
from gpuvec.registration import load_env
from gpuvec.spec import Environment, SingleAgentEnv
from gpuvec.testing.compiled_runs.compiled_run import (
    CompiledRun,
    check_equal_step,
    load_recorded_run,
    random_actions,
    record_run,
    short_episode_steps,
    step_results,
)
from gpuvec.testing.compiled_runs.explanations import explain_crash, explain_error, explain_nonfinite
from gpuvec.testing.compiled_runs.result_checks import NonFiniteResultError, check_spaces
from gpuvec.testing.draw_check import check_draws
from gpuvec.testing.race_check import NUM_STEPS, check_races, check_races_in_run
from gpuvec.testing.reference.author_calls import call_checked, limit_calls
from gpuvec.testing.reference_check import check_against_reference
from gpuvec.testing.target_check.target_comparison import ComparisonJob, compare
from gpuvec.testing.target_check.targets import CUDA_C_ON_CPU
from gpuvec.testing.type_check import check_multi_agent_types, check_single_agent_types
from gpuvec.testing.worker_process import WorkerError, WorkerProcess
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.env_params import apply_params

TIME_LIMIT = 20.0  # CPU seconds; a call usually takes milliseconds
REPLAY_SECONDS = 1.0  # CPU seconds; plain Python repeats about 20,000 steps of a small environment in them
NUM_SIMULATED_ENVS, NUM_SIMULATED_STEPS = 5, 12  # a simulated thread is a Python thread
NUM_CUDA_ENVS, MAX_CUDA_STEPS = 9, 40  # of functions in CUDA C++ that run on the CPU
DEFAULT_EPISODE_STEPS = 1000  # the length of an episode if the environment has no step limit
MAX_STEPS = 4000  # the limit of the default number of steps
NUM_COMPILED_ENVS = 2048  # the number of environments for which the launch configuration of a GPU is chosen
MAX_RESULT_BYTES = 2**27  # the limit of the results of a run, which are stored on disk


class Check(NamedTuple):
    """The result of one check of an environment, which found no fault."""

    name: str
    ran: bool
    detail: str  # what was checked, or why the check did not run on this machine and what it needs


def _ignore(name: str, detail: str, ran: bool = True) -> None:
    """Reports no check: an error is what is looked for."""


Add = Callable[..., None]  # reports a check that has finished, by its name, its detail and whether it ran


class _RunSize(NamedTuple):
    """The size of the compiled run."""

    num_envs: int
    steps: int
    limit: int | None  # the number of steps of an episode; None for no limit


def check_env(
    env: Environment | str,
    num_envs: int = 33,
    steps: int | None = None,
    seed: int = 0,
    *,
    kernels: bool = True,
    time_limit: float = TIME_LIMIT,
    replay_seconds: float = REPLAY_SECONDS,
    progress: Callable[[Check], None] | None = None,
    **params: Any,
) -> list[Check]:
    """Checks the types, draws, spaces and seeds of an environment, and that its results are the same on every device.

    Compiled code runs whole episodes with random actions. Plain Python then repeats their steps, those with rare states first,
    and checks every index, integer divisor, shift and draw, until `replay_seconds` are over or all steps are repeated. For a
    `MultiAgentEnv` it also checks that agents write only their own elements, that the order of agents does not matter, and that
    `reset` keeps no value of the last episode.

    Args:
        env: the environment, its name "module:NAME", or its id.
        num_envs: the number of environments that run, E; fewer if their results would take too much memory.
        steps: the number of steps that run, T; by default those of an episode and a quarter more. With a value, episodes are
            truncated so that each environment is reset several times.
        seed: the seed of the environments and of the actions.
        kernels: whether to compile the kernels for a GPU, if NVIDIA's compiler libraries are installed.
        time_limit: the CPU seconds that one call of a function, or one compiled step of all environments, may take.
        replay_seconds: the CPU seconds for which plain Python repeats further steps after a selection of rare and random ones,
            which it repeats in any case.
        progress: called with each check when it has finished.
        params: parameters of the environment that differ from its defaults.

    Returns:
        The checks, those included that could not run on this machine.

    Raises:
        AuthoringError: the environment has a fault; the message names the place and a remedy.
        ValueError: `num_envs` or `steps` below 1, `time_limit` not above 0, or `replay_seconds` below 0.
    """
    for name, value in {"num_envs": num_envs, "steps": steps}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value!r}.")
    require_seconds(time_limit, replay_seconds)
    env = resolve(env, params)
    checks = list[Check]()

    def add(name: str, detail: str, ran: bool = True) -> None:
        checks.append(Check(name, ran, detail))
        if progress is not None:
            progress(checks[-1])

    schema = make_schema(env)
    size = _run_size(env, schema, num_envs, steps)
    missing = missing_compiler() if kernels else "skipped because of kernels=False"
    add("parameters", check_structural(env))
    with (
        limit_calls(call_checked, time_limit),
        # The worker processes compile while this process checks the functions.
        WorkerProcess(record_run, env, **size._asdict(), seed=seed, time_limit=time_limit) as runner,
        nullcontext() if missing else WorkerProcess(compile_kernels, env) as compiler,
    ):
        if isinstance(env, SingleAgentEnv):
            add("types", check_single_agent_types(env, schema))
            add("draws", check_draws(env))
        else:
            add("types", check_multi_agent_types(env, schema))
            for name, detail in check_races(env, NUM_STEPS, seed).items():
                add(name, detail)
        seeds = _answer_with_line(runner, env, schema, size, seed, time_limit)
        _check_run(add, env, schema, load_recorded_run(runner.folder, size.limit), seed, replay_seconds)
        add("seeds", seeds)
        _check_simulator(add, env, schema, seed)
        _check_cuda_c(add, env, seed, compiles=compiler is not None)
        add("sm_90", compiler.answer() if compiler is not None else missing, ran=compiler is not None)
    return checks


def require_seconds(time_limit: float, replay_seconds: float) -> None:
    """Raises ValueError for a `time_limit` that is not above 0, or `replay_seconds` below 0."""
    if not time_limit > 0:
        raise ValueError(f"time_limit must be greater than 0 CPU seconds, got {time_limit!r}.")
    if not replay_seconds >= 0:
        raise ValueError(f"replay_seconds must be at least 0 CPU seconds, got {replay_seconds!r}.")


def resolve(env: Environment | str, params: Mapping[str, Any]) -> Environment:
    """Finds an environment and replaces its default parameters.

    Args:
        env: the environment, its name "module:NAME", or its id.
        params: parameters that differ from its defaults.

    Raises:
        AuthoringError, gymnasium.error.Error: there is no such environment.
        UnknownParameterError, TypeError, ValueError: a parameter is unknown or has an invalid value.
    """
    if isinstance(env, str) and not re.fullmatch(r"[\w.]+:\w+", env):  # an id has a version or a namespace
        kwargs = gym.spec(env).kwargs
        if "env" not in kwargs:
            raise AuthoringError(f"{env!r} is not an environment of gpuvec; register one with gpuvec.register(id, env).")
        env = load_env(kwargs["env"])
        params = {k: v for k, v in kwargs.items() if k in env.params._fields} | dict(params)
    return apply_params(load_env(env), params, (), 1)[0]


def _run_size(env: Environment, schema: EnvSchema, num_envs: int, steps: int | None) -> _RunSize:
    """The size of the run, which by default continues beyond the end of episodes as far as `MAX_RESULT_BYTES` allows."""
    limit = env.max_episode_steps
    if steps is not None:
        return _RunSize(num_envs, steps, min(short_episode_steps(steps), limit or steps))
    steps = min((limit or DEFAULT_EPISODE_STEPS) * 5 // 4 + 1, MAX_STEPS)
    state_bytes = sum(int(np.prod(b.shape)) * np.dtype(b.dtype).itemsize for b in schema.fields.values())
    parts = schema.parts if isinstance(schema, MultiAgentSchema) else (schema,)
    bytes_per_step = state_bytes + 4 * (max(part.num_features for part in parts) + 2) * schema.num_agents
    max_envs = max(2, min(num_envs, MAX_RESULT_BYTES // (steps * bytes_per_step)))
    return _RunSize(min(max_envs, num_envs), steps, limit)


def _answer_with_line(
    runner: WorkerProcess, env: Environment, schema: EnvSchema, size: _RunSize, seed: int, time_limit: float
) -> str:
    """Returns the answer of the compiled run; if it ended early, plain Python repeats its last call and shows the line."""
    try:
        return runner.answer()
    except WorkerError as error:
        run = load_recorded_run(runner.folder, size.limit)
        check_run = partial(_check_run, _ignore, env, schema, seed=seed, replay_seconds=REPLAY_SECONDS)
        explain_crash(env, run, error, size.num_envs, seed, time_limit, check_run)
    except AuthoringError:
        run = load_recorded_run(runner.folder, size.limit)
        explain_error(env, run, size.num_envs, seed)
        if run is not None:  # Runs that differ may read other memory, whose index plain Python shows.
            _check_run(_ignore, env, schema, run, seed, REPLAY_SECONDS)
        raise


def _check_run(
    add: Add, env: Environment, schema: EnvSchema, run: CompiledRun | None, seed: int, replay_seconds: float
) -> None:
    """Checks the results of the compiled run."""
    assert run is not None, "the worker process has answered"
    try:
        add("spaces", check_spaces(env, schema, run))
    except NonFiniteResultError as error:
        raise explain_nonfinite(env, run, error, seed) from None
    if not isinstance(env, SingleAgentEnv):
        replay_seconds /= 2  # half of the time for each of the two checks
        add("rare states", check_races_in_run(env, run, seed, replay_seconds))
    add("plain Python", check_against_reference(env, run, seed, replay_seconds))


def _check_cuda_c(add: Add, env: Environment, seed: int, compiles: bool) -> None:
    """Checks functions in CUDA C++, if there are any, in this process, so that warnings of the compilers are shown."""
    if env.cuda_c is None or numba_cuda.SIMULATED:
        return
    if compiles:
        check_cuda_source(env)
    limit = min(MAX_CUDA_STEPS, env.max_episode_steps or MAX_CUDA_STEPS)
    job = ComparisonJob(env, CUDA_C_ON_CPU.name, CUDA_C_ON_CPU.options, {}, NUM_CUDA_ENVS, 1, limit, seed, modes=("SameStep",))
    try:
        host_compiler()
        report = compare(job)
    except (AuthoringError, MissingExtraError) as error:
        if isinstance(error, AuthoringError) and "does not compile for a CPU" not in str(error):
            raise
        add("CUDA C++", str(error), ran=False)
        return
    if report.difference:
        raise authoring_error(step_function(env), f"its results in CUDA C++ differ: {report.difference}")
    agreement = "bit-identical to Python's" if report.identical else "equal to Python's, floats to 1e-5"
    add("CUDA C++", f"{report.num_results:,} results are {agreement}")


def _check_simulator(add: Add, env: Environment, schema: EnvSchema, seed: int) -> None:
    """Compares a few steps in Numba's CUDA simulator with the CPU, if the simulator is enabled in this process."""
    if not numba_cuda.SIMULATED:
        add("simulator", "set NUMBA_ENABLE_CUDASIM=1 before Python starts, in another process", ran=False)
        return
    actions = random_actions(env, schema, NUM_SIMULATED_STEPS, NUM_SIMULATED_ENVS, seed)
    options: dict[str, Any] = {"output": "numpy", "max_episode_steps": short_episode_steps(NUM_SIMULATED_STEPS)}
    both = [VectorEnv(env, NUM_SIMULATED_ENVS, device=device, **options) for device in ("cpu", "simulator")]
    runs = (step_results(envs, actions.copy(), seed) for envs in both)
    for t, (expected, actual) in enumerate(zip(*runs, strict=True)):
        check_equal_step(env, schema, t, expected, actual, "the CPU and the CUDA simulator")
    add("simulator", "equals the CPU bit for bit")


def check_structural(env: Environment) -> str:
    """Varies each parameter that is not in `structural`, and compares all shapes: agents, spaces, fields, tables, neighbors.

    Values for which the environment's `check` or a function of its declaration raises an error are skipped.

    Args:
        env: the environment.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a shape depends on a parameter that is not in `structural`.
    """
    structural = env.structural
    num_varied = 0
    for name, value in env.params._asdict().items():
        others = [other for other in _other_values(value) if name not in structural]
        for other in others:
            try:
                changed = dataclasses.replace(env, params=env.params._replace(**{name: other}))
                if env.check is not None:
                    env.check(changed.params)
                changes = shape_differences(env, changed)
            except (ArithmeticError, AssertionError, AuthoringError, LookupError, TypeError, ValueError):
                continue  # values that make no sense together
            num_varied += 1
            if changes:
                problem = f"shapes depend on parameter {name!r}: with {other!r} {'; '.join(changes)}"
                raise AuthoringError(f"{problem}; put {name!r} into structural=(...).")
    return f"with {num_varied} other values of parameters that are not structural all shapes stay the same"


def _other_values(value: float) -> list[float]:
    """Other values of the same type, near the value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, 2 * value + 1]
    return [value * 1.1 if value else 0.1, value * 0.9 if value else -0.1, value + 1.0, value - 1.0, value * 2.0]


def check_cuda_source(env: Environment) -> None:
    """Compiles the functions of an environment in CUDA C++, and checks that they compute nothing in float64.

    Args:
        env: the environment.

    Raises:
        AuthoringError: a function cannot be compiled, or computes in float64; the message names the line.
    """
    source, file, line = make_cuda_functions(make_kernel_spec(env, KernelOptions(AutoresetMode.DISABLED, None))).source, "", 0
    ptx = compile_source(source, (9, 0), "ptx").decode()
    files = dict(re.findall(r"^\s*\.file\s+(\d+) \"(.+?)\"", ptx, re.MULTILINE))
    for text in ptx.splitlines():
        if location := re.match(r"\s*\.loc\s+(\d+) (\d+)", text):
            file, line = files[location[1]], int(location[2])
        # A declaration of a register, `.reg .f64`, begins with a dot and does not match.
        elif re.match(r"\s*[a-z]\S*\.f64\b", text) and file == str(source.file):
            raise authoring_error_at(
                source.file, line, "computes in float64; write numbers as 0.5f, and call functions such as sqrtf"
            )


def missing_compiler() -> str:
    """The reason why kernels cannot be compiled on this machine; "" if they can."""
    if numba_cuda.SIMULATED:
        return "the simulator compiles no kernels"
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        for library in ("nvvm", "nvJitLink"):
            pathfinder.load_nvidia_dynamic_lib(library)
    except (ImportError, RuntimeError) as error:
        return f"{str(error).splitlines()[0]}: {install_command('compile')}"
    return ""


def compile_kernels(env: Environment, folder: Path | None = None) -> str:
    """Compiles the kernels of a step in the mode NEXT_STEP, which also resets.

    The other modes and the reset call the same functions of the author with the same types.

    Args:
        env: the environment.
        folder: not used; a `WorkerProcess` passes it.

    Returns:
        What was compiled, as text.

    Raises:
        AuthoringError: the code cannot be compiled.
    """
    spec = make_kernel_spec(env, KernelOptions(AutoresetMode.NEXT_STEP, env.max_episode_steps))
    spec = spec.with_options(spec.options._replace(action_dtype=default_action_dtype(spec.schema)))
    num_kernels = 0
    with explain_env_errors(env, "step"):
        for kernel in make_kernels(spec, make_launch_config(spec.schema, NUM_COMPILED_ENVS), "step"):
            kernel.binary((9, 0))
            num_kernels += 1
    kernels = "kernel of a step" if num_kernels == 1 else f"{num_kernels} kernels of a step"
    return f"{kernels} compiled"
