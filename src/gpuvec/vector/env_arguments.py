"""Checks of the arguments of `VectorEnv` that are not parameters of the environment itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import cuda_c_file
from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT, KernelOptions
from gpuvec.spec import Environment, MultiAgentEnv

BACKENDS = ("numba", "cuda-c")
DECLARED = "declared"


def is_name_of(value: object, names: Iterable[str]) -> bool:
    """Returns whether a value is text and one of some names; comparing an array with text would return an array."""
    return isinstance(value, str) and value in names


def make_options(
    declared: Environment,
    num_envs: int,
    buffers: int | None,
    render_mode: str | None,
    per_env: Sequence[str],
    autoreset_mode: AutoresetMode | str,
    max_episode_steps: int | str | None,
    validate: bool,
    debug: bool,
) -> KernelOptions:
    """Checks arguments of `VectorEnv`, which describes them, and returns the options of its kernels.

    Args:
        declared: the environment with its default parameters.

    Raises:
        ValueError: a number out of its range, a mode that there is not or that this environment does not support, or a flag
            of another type.
        TypeError: `per_env` is no sequence of names.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise ValueError(f"num_envs must be an integer of at least 1, got {num_envs!r}.")
    if buffers is not None and (isinstance(buffers, bool) or not isinstance(buffers, int) or buffers < 1):
        raise ValueError(f"buffers must be None (new arrays in every step) or at least 1 (a ring), got {buffers!r}.")
    if render_mode is not None and (not is_name_of(render_mode, ("rgb_array",)) or declared.draw is None):
        modes = "None or 'rgb_array'" if declared.draw else "None: this environment draws no pictures"
        raise ValueError(f"render_mode must be {modes}, got {render_mode!r}.")
    for name, value in {"validate": validate, "debug": debug}.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be True or False, got {describe_value(value)}.")
    if isinstance(per_env, str):
        raise TypeError(f"per_env must be a sequence of parameter names, got {per_env!r}: write per_env=({per_env!r},).")
    if not isinstance(per_env, Sequence) or not all(isinstance(name, str) for name in per_env):
        raise TypeError(f"per_env must be a sequence of parameter names, got {describe_value(per_env)}.")
    if not isinstance(autoreset_mode, AutoresetMode) and not is_name_of(autoreset_mode, [m.value for m in AutoresetMode]):
        allowed = ", ".join(repr(m.value) for m in AutoresetMode)
        raise ValueError(f"autoreset_mode must be a gymnasium.vector.AutoresetMode or {allowed}, got {autoreset_mode!r}.")
    steps: Any = declared.max_episode_steps if is_name_of(max_episode_steps, (DECLARED,)) else max_episode_steps
    is_integer = isinstance(steps, int | np.integer) and not isinstance(steps, bool)
    limit = None if steps is None or (is_integer and steps == -1) else steps
    if limit is not None and (not is_integer or not 1 <= int(limit) <= NO_STEP_LIMIT):
        raise ValueError(
            f"max_episode_steps must be at least 1 and at most {NO_STEP_LIMIT}, None or -1 for no limit, or {DECLARED!r} for "
            f"the environment's own, got {describe_value(max_episode_steps)}."
        )
    return KernelOptions(AutoresetMode(autoreset_mode), None if limit is None else int(limit), tuple(per_env), validate)


def complete_options(options: KernelOptions, env: Environment, device: Device, reward: str, backend: str) -> KernelOptions:
    """Returns options with those that depend on the parameters and the device.

    Args:
        options: what `make_options` returned.
        env: the environment, with its parameters.
        device: the device that the kernels run on.
        reward, backend: arguments of `VectorEnv`, which describes them.

    Raises:
        ValueError: a reward that this environment does not have, another backend, or "cuda-c" in the simulator, which runs
            Python functions only.
        AuthoringError: "cuda-c" for an environment without CUDA C++ functions.
        MissingExtraError: "cuda-c" on a CPU without a C++ compiler.
    """
    allowed = ["agents"]
    if isinstance(env, MultiAgentEnv):
        allowed += ["sum", *(env.roles(env.params) if env.roles is not None else ())]
    if not is_name_of(reward, allowed):
        raise ValueError(f"reward must be {' or '.join(map(repr, allowed))} in this environment, got {reward!r}.")
    if not is_name_of(backend, BACKENDS):
        raise ValueError(f"backend must be {' or '.join(map(repr, BACKENDS))}, got {backend!r}.")
    is_cuda_c = backend == "cuda-c"
    if is_cuda_c and device.kind == "simulator":
        raise ValueError(
            'backend="cuda-c" needs a GPU or a CPU, and device is "simulator": choose one of these, or backend="numba".'
        )
    if is_cuda_c:
        cuda_c_file(env)
        if device.kind == "cpu":
            host_compiler()
    return options._replace(reward=reward, cuda_c=is_cuda_c)
