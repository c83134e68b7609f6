"""An environment's parameters as a user gives them, and the words in which faults are told."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import cuda_c_file
from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.structure import constant_differences, params_of_structure, shape_differences
from gpuvec.errors import FixedParameterError, UnknownParameterError
from gpuvec.spec import Environment, MultiAgentEnv

FLOAT_MAX, INT_LIMITS = float(np.finfo(np.float32).max), np.iinfo(np.int32)
BACKENDS = ("numba", "cuda-c")
DECLARED = "declared"


def apply_params(
    env: Environment,
    given: Mapping[str, Any],
    per_env: tuple[str, ...],
    num_envs: int,
    *,
    keywords: Sequence[str] = (),
    stored: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Environment, dict[str, Any]]:
    """(`env` with the given parameters, {name: (E,) values of those given as lists}).

    Args:
        env: as declared.
        given: the parameters to change.
        per_env: names of those that are stored per environment.
        num_envs: E.
        keywords: names that are no parameters, but could have been meant by an unknown one.
        stored: the E values of each parameter that is stored per environment already.

    Raises:
        UnknownParameterError: a name that the environment does not have; near ones are listed.
        TypeError: a value of the wrong type; a list for a parameter that is not in `per_env`.
        ValueError: a list of the wrong length, or values that make no sense together.
        FixedParameterError: a value that needs other buffers or spaces than those of `env` where these are made, or a row's
            that needs others than all rows share.
    """
    known = env.params._fields
    for name in (*given, *per_env):
        if name not in known:
            near = difflib.get_close_matches(name, (*known, *keywords), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            besides = f"; besides, every environment takes {', '.join(keywords)}" if keywords else ""
            raise UnknownParameterError(f"unknown parameter {name!r}; {hint}This environment has {', '.join(known)}{besides}.")
    fixed = env.structural if isinstance(env, MultiAgentEnv) else ()
    if set(fixed) & set(per_env):
        raise FixedParameterError(
            f"parameters {sorted(set(fixed) & set(per_env))} shape the environment and cannot be stored per row."
        )
    single, lists = {}, {}
    for name, value in given.items():
        default = getattr(env.params, name)
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()  # noqa: PLW2901  # an array of no dimensions is a number
        if not isinstance(value, list | tuple | np.ndarray):
            single[name] = _as(type(default), name, value)
        elif name not in per_env:
            raise TypeError(
                f"parameter {name!r} was given {len(value)} values; to store one per row, make the environment with "
                f"per_env=({name!r},)."
            )
        elif len(value) != num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(value)}` values for {num_envs} environments."
            )
        else:
            lists[name] = np.array([_as(type(default), name, v) for v in value])
    new = dataclasses.replace(env, params=env.params._replace(**single))
    rows = {k: v for k, v in (stored or {}).items() if k not in given} | {k: v.tolist() for k, v in lists.items()}
    check_rows(new, rows)
    common = new
    if stored is not None:
        common = dataclasses.replace(env, params=env.params._replace(**{k: v for k, v in single.items() if k not in per_env}))
        refuse_other_shapes(env, common, single)
        rows |= {name: [value] * num_envs for name, value in single.items() if name in per_env}
    refuse_other_rows(common, rows)
    return new, lists


def refuse_other_shapes(env: Environment, new: Environment, given: Mapping[str, Any]) -> None:
    """Refuses the parameters `given`, with which `new` needs other buffers or spaces than those that `env` has.

    Raises:
        FixedParameterError: as said; it names what differs.
    """
    found = shape_differences(env, new) if given else []
    if found:
        names, values = ", ".join(map(repr, given)), ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise FixedParameterError(
            f"parameter {names} shapes the environment, whose buffers exist: {'; '.join(found)}; make a new one with {values}."
        )


def refuse_other_rows(env: Environment, rows: Mapping[str, Sequence[Any]]) -> None:
    """Refuses parameters stored per environment, {name: (E,) values}, with which a row needs what other rows have not.

    Raises:
        FixedParameterError: as said; it names what differs.
    """
    read = [name for name in rows if name in params_of_structure(env)] if rows else []
    for values in dict.fromkeys(zip(*(rows[name] for name in read), strict=True)):
        row = dict(zip(read, values, strict=True))
        found = constant_differences(env, dataclasses.replace(env, params=env.params._replace(**row)))
        if found:
            said = ", ".join(f"{name!r} of {value!r}" for name, value in row.items())
            raise FixedParameterError(
                f"a row with parameter {said} needs other values of what all rows share: {'; '.join(found)}. Make one "
                "environment for each such value."
            )


def check_rows(env: Environment, rows: Mapping[str, Sequence[Any]]) -> None:
    """Lets the environment check its parameters, each row with its own values of those in `rows`, {name: (E,) values}."""
    if env.check is not None:
        for values in set(zip(*rows.values(), strict=True)) or {()}:
            env.check(env.params._replace(**dict(zip(rows, values, strict=True))))


def _as(kind: type, name: str, value: Any) -> Any:
    allowed = {bool: bool | np.bool_, int: int | np.integer, float: float | int | np.floating | np.integer}[kind]
    if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"parameter {name!r} must be a {kind.__name__}, got {value!r} ({type(value).__name__}).")
    if kind is float and value != value:
        raise ValueError(f"parameter {name!r} must be a number, got {value!r}.")
    if kind is not bool and not (kind is float and value in (math.inf, -math.inf)):
        low, high = (-FLOAT_MAX, FLOAT_MAX) if kind is float else (int(INT_LIMITS.min), int(INT_LIMITS.max))
        if not low <= value <= high:
            raise ValueError(f"parameter {name!r} must be a {kind.__name__} of 32 bits, from {low} to {high}, got {value!r}.")
    return kind(value)


def checked_reward(reward: str, env: Environment) -> str:
    """Whose reward a step returns.

    Raises:
        ValueError: a name that is neither "agents" nor, with many agents, "sum" or a role.
    """
    allowed = ["agents"]
    if isinstance(env, MultiAgentEnv):
        allowed += ["sum", *(env.roles(env.params) if env.roles is not None else ())]
    if reward not in allowed:
        raise ValueError(f"reward must be {' or '.join(map(repr, allowed))} in this environment, got {reward!r}.")
    return reward


def uses_cuda_c(backend: str, env: Environment, device: Device) -> bool:
    """Whether functions in CUDA C++ are taken in place of those in Python.

    Raises:
        ValueError: no such backend, or the simulator, which runs Python alone.
        AuthoringError: the environment has none.
        MissingExtraError: on a CPU, where there is no C++ compiler.
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


def parse_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """The mode, also given as its value.

    Raises:
        ValueError: there is none of that value.
    """
    try:
        return AutoresetMode(mode)
    except ValueError:
        allowed = ", ".join(repr(m.value) for m in AutoresetMode)
        raise ValueError(f"autoreset_mode must be a gymnasium.vector.AutoresetMode or {allowed}, got {mode!r}.") from None


def parse_step_limit(max_episode_steps: int | str | None, declared: int | None) -> int | None:
    """None for no limit, as -1 also says; the environment's own, `declared`, for "declared".

    Raises:
        ValueError: none of these, nor at least 1.
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
