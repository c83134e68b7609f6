"""Kernels as machine code for an H100 or H200, without one."""

from __future__ import annotations

import importlib
from pathlib import Path

from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.kernels import kernels
from gpuvec.engine.backends.cuda.launch_config import shape
from gpuvec.engine.compiler.diagnostics import explaining
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import signature
from gpuvec.spec import Environment
from gpuvec.testing.runs import stepping

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
    variant = KernelOptions(AutoresetMode.NEXT_STEP, env.max_episode_steps, action_dtype=signature(env).actions.dtype)
    made = 0
    with explaining(stepping(env)), numba_cuda.offline((9, 0)):
        for kernel in kernels(env, variant, shape(env, ENVS), True):
            kernel.binary((9, 0))
            made += 1
    what = "kernel of a step" if made == 1 else f"{made} kernels of a step"
    return f"{what} compiled"
