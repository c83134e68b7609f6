"""An environment's parameters as a user gives them, and the words in which faults are told."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from gpuvec.errors import UnknownParameterError
from gpuvec.spec import Single


def apply(env: Single, given: Mapping[str, Any], per_env: tuple[str, ...], num_envs: int) -> tuple[Single, dict[str, Any]]:
    """(`env` with the given parameters, {name: (E,) values of those given as lists}).

    Raises:
        UnknownParameterError: a name that the environment does not have; near ones are listed.
        TypeError: a value of the wrong type; a list for a parameter that is not in `per_env`.
        ValueError: a list of the wrong length, or values that make no sense together.
    """
    known = env.params._fields
    for name in (*given, *per_env):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise UnknownParameterError(f"unknown parameter {name!r}; {hint}This environment has {', '.join(known)}.")
    single, lists = {}, {}
    for name, value in given.items():
        default = getattr(env.params, name)
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
    if env.check is not None:
        env.check(new.params)
        for name, values in lists.items():
            for value in np.unique(values):
                env.check(new.params._replace(**{name: value.item()}))
    return new, lists


def _as(kind: type, name: str, value: Any) -> Any:
    allowed = {bool: bool | np.bool_, int: int | np.integer, float: float | int | np.floating | np.integer}[kind]
    if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"parameter {name!r} must be a {kind.__name__}, got {value!r} ({type(value).__name__}).")
    if kind is float and np.isnan(value):
        raise ValueError(f"parameter {name!r} must be a number, got {value!r}.")
    return kind(value)


def step_limit(max_episode_steps: int | None) -> int | None:
    """None for no limit, as -1 also says.

    Raises:
        ValueError: neither of these nor at least 1.
    """
    if max_episode_steps is None or max_episode_steps == -1:
        return None
    if isinstance(max_episode_steps, bool) or not isinstance(max_episode_steps, int | np.integer) or max_episode_steps < 1:
        raise ValueError(f"max_episode_steps must be at least 1, or None or -1 for no limit, got {max_episode_steps!r}.")
    return int(max_episode_steps)


def action_fault(env: int, given: int, space: gym.Space[Any]) -> str:
    """What is wrong with the action of `env`; `given` is its value, or the index of a component that is no number."""
    if isinstance(space, gym.spaces.Box):
        return f"environment {env} was given an action whose component {given} is not finite; allowed are finite numbers."
    value = given - 2**32 if given >= 2**31 else given
    if isinstance(space, gym.spaces.Discrete):
        return f"environment {env} was given action {value}; allowed are {space.start} to {space.start + space.n - 1}."
    return f"environment {env} was given an action with component {value}; the action space is {space}."
