"""Functions in CUDA C++: what compilers say of them, and what they compute on a CPU beside those in Python."""

from __future__ import annotations

import re

from gpuvec.engine.backends.cuda.cpp.cuda_functions import cuda_functions
from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import compile_source
from gpuvec.engine.compiler.diagnostics import authoring_error, authoring_error_at
from gpuvec.errors import AuthoringError, MissingExtraError
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import stepping
from gpuvec.testing.target_check.target_comparison import Job, compare
from gpuvec.testing.target_check.targets import CUDA_C_ON_CPU

ENVS, STEPS = 9, 40


def check_source(env: Environment) -> None:
    """Compiles the functions of `env` in CUDA C++.

    Raises:
        AuthoringError: what cannot be compiled, or the line of a float64.
    """
    source, place, line = cuda_functions(env, ()).source, "", 0
    ptx = compile_source(source, (9, 0), "ptx").decode()
    files = dict(re.findall(r"^\s*\.file\s+(\d+) \"(.+?)\"", ptx, re.MULTILINE))
    for text in ptx.splitlines():
        if found := re.match(r"\s*\.loc\s+(\d+) (\d+)", text):
            place, line = files[found[1]], int(found[2])
        elif re.match(r"\s*[a-z]\S*\.f64\b", text) and place == str(source.file):  # no declaration
            raise authoring_error_at(
                source.file, line, "computes in float64; write numbers as 0.5f, and call functions such as sqrtf"
            )


def check_values(env: Environment, seed: int) -> tuple[bool, str]:
    """Plays the functions in CUDA C++ on the CPU beside those in Python, call by call from the same state.

    Returns:
        Whether that could be done here, and what was found or is missing.

    Raises:
        AuthoringError: the first result that differs.
    """
    try:
        host_compiler()
    except MissingExtraError as error:
        return False, str(error)
    limit = min(STEPS, env.max_episode_steps or STEPS)
    asked = Job(env, CUDA_C_ON_CPU.name, CUDA_C_ON_CPU.options, {}, ENVS, 1, limit, seed, modes=("SameStep",))
    try:
        report = compare(asked)
    except AuthoringError as error:
        if "does not compile for a CPU" not in str(error):
            raise
        return False, str(error)
    if report.difference:
        raise authoring_error(stepping(env), f"in CUDA C++ it does something else: {report.difference}")
    how = "the same bits as Python's" if report.identical else "as Python's, floats to 1e-5"
    return True, f"{report.results:,} results are {how}"
