"""Compiles kernels to machine code for an H100 or H200, which the machine need not have."""

from __future__ import annotations

import importlib
from pathlib import Path

from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.compiler.diagnostics import explain_env_errors
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.schema import default_action_dtype
from gpuvec.errors import install_command
from gpuvec.spec import Environment

NUM_ENVS = 2048  # the number of environments for which the launch configuration is chosen


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
        for kernel in make_kernels(spec, make_launch_config(spec.schema, NUM_ENVS), True):
            kernel.binary((9, 0))
            num_kernels += 1
    kernels = "kernel of a step" if num_kernels == 1 else f"{num_kernels} kernels of a step"
    return f"{kernels} compiled"
