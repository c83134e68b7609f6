"""Checks that functions in CUDA C++ compile, and return the same results as those in Python."""

from __future__ import annotations

import re

from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import compile_source
from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at, step_function
from gpuvec.errors import AuthoringError, MissingExtraError
from gpuvec.spec import Environment
from gpuvec.testing.target_check.target_comparison import ComparisonJob, compare
from gpuvec.testing.target_check.targets import CUDA_C_ON_CPU

NUM_ENVS, MAX_STEPS = 9, 40


def check_cuda_source(env: Environment) -> None:
    """Compiles the functions of an environment in CUDA C++, and checks that they compute nothing in float64.

    Args:
        env: the environment.

    Raises:
        AuthoringError: a function cannot be compiled, or computes in float64; the message names the line.
    """
    source, file, line = make_cuda_functions(env, ()).source, "", 0
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


def check_cuda_results(env: Environment, seed: int) -> tuple[bool, str]:
    """Compares the functions in CUDA C++ with those in Python on the CPU, each call from the same state.

    Args:
        env: the environment.
        seed: the seed of the environments and of the actions.

    Returns:
        Whether the check could run on this machine, and what was compared or is missing.

    Raises:
        AuthoringError: a result differs; the message names the first.
    """
    try:
        host_compiler()
    except MissingExtraError as error:
        return False, str(error)
    limit = min(MAX_STEPS, env.max_episode_steps or MAX_STEPS)
    job = ComparisonJob(env, CUDA_C_ON_CPU.name, CUDA_C_ON_CPU.options, {}, NUM_ENVS, 1, limit, seed, modes=("SameStep",))
    try:
        report = compare(job)
    except AuthoringError as error:
        if "does not compile for a CPU" not in str(error):
            raise
        return False, str(error)
    if report.difference:
        raise authoring_error(step_function(env), f"its results in CUDA C++ differ: {report.difference}")
    agreement = "bit-identical to Python's" if report.identical else "equal to Python's, floats to 1e-5"
    return True, f"{report.num_results:,} results are {agreement}"
