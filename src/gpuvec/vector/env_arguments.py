"""Checks of the arguments of `VectorEnv` that are not parameters of the environment itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import cuda_c_file
from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.buffers import NO_STEP_LIMIT
from gpuvec.spec import Environment, MultiAgentEnv

BACKENDS = ("numba", "cuda-c")
DECLARED = "declared"


def is_name_of(value: object, names: Iterable[str]) -> bool:
    """Returns whether a value is text and one of some names; comparing an array with text would return an array.

    Args:
        value: any object.
        names: the names.
    """
    return isinstance(value, str) and value in names


def check_flags(**flags: bool) -> None:
    """Checks arguments that are True or False.

    Args:
        flags: {name: value}.

    Raises:
        ValueError: another value.
    """
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be True or False, got {describe_value(value)}.")


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
    if render_mode is not None and (not is_name_of(render_mode, ("rgb_array",)) or env.draw is None):
        modes = "None or 'rgb_array'" if env.draw else "None: this environment draws no pictures"
        raise ValueError(f"render_mode must be {modes}, got {render_mode!r}.")


def parse_per_env(per_env: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the parameters that are stored per environment as a tuple.

    Args:
        per_env: the names.

    Raises:
        TypeError: one string in place of a sequence of names, or anything else.
    """
    if isinstance(per_env, str):
        raise TypeError(f"per_env must be a sequence of parameter names, got {per_env!r}: write per_env=({per_env!r},).")
    if not isinstance(per_env, Sequence) or not all(isinstance(name, str) for name in per_env):
        raise TypeError(f"per_env must be a sequence of parameter names, got {describe_value(per_env)}.")
    return tuple(per_env)


def parse_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Returns the autoreset mode as a member of Gymnasium's enumeration.

    Args:
        mode: a member, or the value of one.

    Raises:
        ValueError: no member has this value.
    """
    if isinstance(mode, AutoresetMode) or is_name_of(mode, [m.value for m in AutoresetMode]):
        return AutoresetMode(mode)
    allowed = ", ".join(repr(m.value) for m in AutoresetMode)
    raise ValueError(f"autoreset_mode must be a gymnasium.vector.AutoresetMode or {allowed}, got {mode!r}.")


def parse_step_limit(max_episode_steps: int | str | None, declared: int | None) -> int | None:
    """Returns the number of steps after which an episode is truncated; None for no limit.

    Args:
        max_episode_steps: the limit, None or -1 for no limit, or "declared" for the environment's own.
        declared: the environment's own limit.

    Raises:
        ValueError: another string, or a number that is neither -1 nor from 1 to 2**31 - 1.
    """
    if isinstance(max_episode_steps, str) and max_episode_steps == DECLARED:
        return declared
    if max_episode_steps is None:
        return None
    is_integer = isinstance(max_episode_steps, int | np.integer) and not isinstance(max_episode_steps, bool)
    if is_integer and max_episode_steps == -1:
        return None
    if not is_integer or not 1 <= int(max_episode_steps) <= NO_STEP_LIMIT:
        raise ValueError(
            f"max_episode_steps must be at least 1 and at most {NO_STEP_LIMIT}, None or -1 for no limit, or {DECLARED!r} for "
            f"the environment's own, got {describe_value(max_episode_steps)}."
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
    if not is_name_of(reward, allowed):
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
    if not is_name_of(backend, BACKENDS):
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
