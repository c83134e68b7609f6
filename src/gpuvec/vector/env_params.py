"""The parameters of an environment: values from a user, checked and applied.

Most parameters are compiled into the kernels. Those named in `per_env` are stored in a buffer, one value per environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.declaration_checks import describe_value
from gpuvec.engine.layout.structure import constant_differences, params_of_structure, shape_differences
from gpuvec.errors import FixedParameterError, UnknownParameterError
from gpuvec.spec import Environment

FLOAT_MAX, INT_LIMITS = float(np.finfo(np.float32).max), np.iinfo(np.int32)
Rows = Mapping[str, Sequence[Any]]  # {parameter: (E,) values}


def apply_params(
    env: Environment,
    values: Mapping[str, Any],
    per_env: tuple[str, ...],
    num_envs: int,
    *,
    keywords: Sequence[str] = (),
    stored: Rows | None = None,
) -> tuple[Environment, dict[str, NDArray[Any]]]:
    """Applies new parameter values to an environment, after all checks.

    Args:
        env: the environment with its present parameters.
        values: {parameter: new value}; for a parameter in `per_env` also a list of E values.
        per_env: names of the parameters that are stored per environment.
        num_envs: E.
        keywords: names of other keyword arguments, which the message about an unknown parameter suggests too.
        stored: the E values of each parameter in `per_env`, if buffers exist already; None before they exist.

    Returns:
        `env` with the new single values, and {parameter: (E,) array} of the new lists.

    Raises:
        UnknownParameterError: a name that the environment does not have; the message lists similar names.
        TypeError: a value of the wrong type, or a list for a parameter that is not in `per_env`.
        ValueError: a list of the wrong length, or values that the environment's own check rejects.
        FixedParameterError: existing buffers or spaces do not fit the new values, or one row needs other shapes or constants
            than those that all rows share.
    """
    for name in (*values, *per_env):
        known = env.params._fields
        if name not in known:
            similar = difflib.get_close_matches(name, (*known, *keywords), n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, similar))}? " if similar else ""
            others = f"; every environment also takes {', '.join(keywords)}" if keywords else ""
            raise UnknownParameterError(f"unknown parameter {name!r}; {hint}This environment has {', '.join(known)}{others}.")
    if structural := set(env.structural) & set(per_env):
        raise FixedParameterError(f"parameters {sorted(structural)} shape the environment and cannot be stored per row.")
    single, lists = dict[str, Any](), dict[str, NDArray[Any]]()  # converted to the types of the defaults
    for name, value in values.items():
        default = getattr(env.params, name)
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()  # noqa: PLW2901  # an array of no dimensions is a number
        if not isinstance(value, list | tuple | np.ndarray):
            single[name] = _converted(name, value, default)
        elif isinstance(value, np.ndarray) and value.ndim != 1:
            raise TypeError(f"parameter {name!r} must be one value for each environment, (E,), got {describe_value(value)}.")
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
            lists[name] = np.array([_converted(name, v, default) for v in value])
    new_env = _with_params(env, single)
    rows = {name: column for name, column in (stored or {}).items() if name not in values}
    rows |= {name: column.tolist() for name, column in lists.items()}
    check_rows(new_env, rows)
    if stored is None:
        refuse_other_rows(new_env, rows)
    else:
        # A single value of a stored parameter is written to the rows; the values that all rows share do not change.
        shared_env = _with_params(env, {name: value for name, value in single.items() if name not in per_env})
        differences = shape_differences(env, shared_env) if single else []
        if differences:
            names = ", ".join(map(repr, single))
            arguments = ", ".join(f"{name}={value!r}" for name, value in single.items())
            raise FixedParameterError(
                f"parameter {names} shapes the environment, whose buffers exist: {'; '.join(differences)}; make a new one with "
                f"{arguments}."
            )
        rows |= {name: [value] * num_envs for name, value in single.items() if name in per_env}
        refuse_other_rows(shared_env, rows)
    return new_env, lists


def _with_params(env: Environment, values: Mapping[str, Any]) -> Environment:
    """`env` with other values of some parameters."""
    return dataclasses.replace(env, params=env.params._replace(**values))


def _converted(name: str, value: Any, default: Any) -> Any:
    """`value` as a bool, int or float, whichever the `default` is.

    Raises:
        TypeError: a value of another type.
        ValueError: nan, a number that 32 bits do not hold, or an infinite one unless the `default` is infinite, too.
    """
    kind = type(default)
    allowed = {bool: bool | np.bool_, int: int | np.integer, float: float | int | np.floating | np.integer}[kind]
    if not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"parameter {name!r} must be a {kind.__name__}, got {describe_value(value)}.")
    if kind is float and value != value:
        raise ValueError(f"parameter {name!r} must be a number, got {value!r}.")
    if kind is float and abs(value) == math.inf and not math.isinf(default):
        raise ValueError(f"{name} is {value!r}; it must be finite.")
    if kind is not bool and not (kind is float and abs(value) == math.inf):
        low, high = (-FLOAT_MAX, FLOAT_MAX) if kind is float else (int(INT_LIMITS.min), int(INT_LIMITS.max))
        if not low <= value <= high:
            raise ValueError(f"parameter {name!r} must be a {kind.__name__} of 32 bits, from {low} to {high}, got {value!r}.")
    return kind(value)


def refuse_other_rows(env: Environment, rows: Rows) -> None:
    """Refuses stored parameter values with which one row needs other shapes or constants than the rest.

    Args:
        env: the environment with the parameter values that all rows share.
        rows: {parameter: (E,) values} of the parameters that are stored per environment.

    Raises:
        FixedParameterError: a row differs from `env`; the message says in what.
    """
    names = [name for name in rows if name in params_of_structure(env)] if rows else []
    for values in dict.fromkeys(zip(*(rows[name] for name in names), strict=True)):
        row = dict(zip(names, values, strict=True))
        differences = constant_differences(env, _with_params(env, row))
        if differences:
            row_values = ", ".join(f"{name!r} of {value!r}" for name, value in row.items())
            raise FixedParameterError(
                f"a row with parameter {row_values} needs other values of what all rows share: {'; '.join(differences)}. Make "
                "one environment for each such value."
            )


def check_rows(env: Environment, rows: Rows) -> None:
    """Runs the environment's own check of its parameters, once for each different row.

    Args:
        env: the environment with the parameter values that all rows share.
        rows: {parameter: (E,) values} of the parameters that differ among rows; empty if none does.

    Raises:
        Whatever the environment's `check` raises.
    """
    if env.check is not None:
        for values in set(zip(*rows.values(), strict=True)) or {()}:
            env.check(env.params._replace(**dict(zip(rows, values, strict=True))))
