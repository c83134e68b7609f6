"""Kernels as machine code for an H100 or H200, without one."""

from __future__ import annotations

import importlib
from pathlib import Path

from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.compiler.diagnostics import explain_compiler_errors
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import make_schema
from gpuvec.spec import Environment
from gpuvec.testing.compiled_runs.compiled_run import stepping

ENVS = 2048  # a batch, for which kernels are laid out


def missing_compiler() -> str:
    """Why kernels cannot be compiled here; "" if they can."""
    if numba_cuda.SIMULATED:
        return "the simulator compiles no kernels"
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        for library in ("nvvm", "nvJitLink"):
            pathfinder.load_nvidia_dynamic_lib(library)
    except (ImportError, RuntimeError) as error:
        return f"needs gpuvec[compile]: {str(error).splitlines()[0]}"
    return ""


def compile_kernels(env: Environment, folder: Path | None = None) -> str:
    """Compiles the kernels of a step of `env`, which also resets; returns what was found.

    They are those of NEXT_STEP. The other modes, and a reset, call the same functions of the author with the same types. The
    folder is not used; a `Worker` hands it over.

    Raises:
        AuthoringError: code that cannot be compiled.
    """
    options = KernelOptions(AutoresetMode.NEXT_STEP, env.max_episode_steps, action_dtype=make_schema(env).action.dtype)
    made = 0
    with explain_compiler_errors(stepping(env)), numba_cuda.offline((9, 0)):
        for kernel in make_kernels(env, options, make_launch_config(env, ENVS), True):
            kernel.binary((9, 0))
            made += 1
    what = "kernel of a step" if made == 1 else f"{made} kernels of a step"
    return f"{what} compiled"
