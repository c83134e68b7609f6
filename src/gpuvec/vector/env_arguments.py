"""Checks of the arguments of `VectorEnv` that are not parameters of the environment itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import cuda_c_file
from gpuvec.engine.backends.device import Device
from gpuvec.spec import Environment, MultiAgentEnv

BACKENDS = ("numba", "cuda-c")
DECLARED = "declared"


def parse_num_envs(num_envs: int) -> int:
    """Returns the number of environments as a Python int.

    Args:
        num_envs: E.

    Raises:
        ValueError: not an integer, or less than 1.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise ValueError(f"num_envs must be an integer of at least 1, got {num_envs!r}.")
    return int(num_envs)


def check_buffers(buffers: int | None) -> None:
    """Checks the number of output buffers.

    Args:
        buffers: None, or the length of the ring.

    Raises:
        ValueError: neither None nor an integer of at least 1.
    """
    if buffers is not None and (isinstance(buffers, bool) or not isinstance(buffers, int) or buffers < 1):
        raise ValueError(f"buffers must be None (new arrays in every step) or at least 1 (a ring), got {buffers!r}.")


def check_render_mode(render_mode: str | None, env: Environment) -> None:
    """Checks that the environment supports a render mode.

    Args:
        render_mode: None or "rgb_array".
        env: the environment.

    Raises:
        ValueError: another mode, or a mode of an environment without a `draw` function.
    """
    if render_mode not in (None, "rgb_array") or (render_mode and env.draw is None):
        modes = "None or 'rgb_array'" if env.draw else "None: this environment draws no pictures"
        raise ValueError(f"render_mode must be {modes}, got {render_mode!r}.")


def parse_per_env(per_env: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the parameters that are stored per environment as a tuple.

    Args:
        per_env: the names.

    Raises:
        TypeError: one string in place of a sequence of names.
    """
    if isinstance(per_env, str):
        raise TypeError(f"per_env must be a sequence of parameter names, got {per_env!r}: write per_env=({per_env!r},).")
    return tuple(per_env)


def parse_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Returns the autoreset mode as a member of Gymnasium's enumeration.

    Args:
        mode: a member, or the value of one.

    Raises:
        ValueError: no member has this value.
    """
    try:
        return AutoresetMode(mode)
    except ValueError:
        allowed = ", ".join(repr(m.value) for m in AutoresetMode)
        raise ValueError(f"autoreset_mode must be a gymnasium.vector.AutoresetMode or {allowed}, got {mode!r}.") from None


def parse_step_limit(max_episode_steps: int | str | None, declared: int | None) -> int | None:
    """Returns the number of steps after which an episode is truncated; None for no limit.

    Args:
        max_episode_steps: the limit, None or -1 for no limit, or "declared" for the environment's own.
        declared: the environment's own limit.

    Raises:
        ValueError: another string, or a number that is neither -1 nor at least 1.
    """
    if isinstance(max_episode_steps, str) and max_episode_steps == DECLARED:
        return declared
    if max_episode_steps is None or max_episode_steps == -1:
        return None
    if isinstance(max_episode_steps, bool) or not isinstance(max_episode_steps, int | np.integer) or max_episode_steps < 1:
        raise ValueError(
            f"max_episode_steps must be at least 1, None or -1 for no limit, or {DECLARED!r} for the environment's own, "
            f"got {max_episode_steps!r}."
        )
    return int(max_episode_steps)


def parse_reward(reward: str, env: Environment) -> str:
    """Returns the name of the reward that a step returns.

    Args:
        reward: "agents" for the reward of each agent, or with many agents "sum" or the name of a role.
        env: the environment, with its parameters.

    Raises:
        ValueError: a name that this environment does not have.
    """
    allowed = ["agents"]
    if isinstance(env, MultiAgentEnv):
        allowed += ["sum", *(env.roles(env.params) if env.roles is not None else ())]
    if reward not in allowed:
        raise ValueError(f"reward must be {' or '.join(map(repr, allowed))} in this environment, got {reward!r}.")
    return reward


def uses_cuda_c(backend: str, env: Environment, device: Device) -> bool:
    """Returns whether the environment's functions in CUDA C++ replace those in Python.

    Args:
        backend: "numba" or "cuda-c".
        env: the environment.
        device: the device that the kernels run on.

    Raises:
        ValueError: another backend, or "cuda-c" in the simulator, which runs Python functions only.
        AuthoringError: "cuda-c" for an environment without CUDA C++ functions.
        MissingExtraError: "cuda-c" on a CPU without a C++ compiler.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be {' or '.join(map(repr, BACKENDS))}, got {backend!r}.")
    if backend == "cuda-c" and device.kind == "simulator":
        raise ValueError(
            'backend="cuda-c" needs a GPU or a CPU, and device is "simulator": choose one of these, or backend="numba".'
        )
    if backend == "cuda-c":
        cuda_c_file(env)
        if device.kind == "cpu":
            host_compiler()
    return backend == "cuda-c"
