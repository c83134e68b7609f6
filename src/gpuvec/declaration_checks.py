"""Checks of a `SingleAgentEnv` or `MultiAgentEnv` when it is constructed. Each error names a field and what it must be."""

from __future__ import annotations

import dataclasses
import linecache
import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from gpuvec.errors import AuthoringError
from gpuvec.phases import Assign, ByRole, Each, Reduction

PARAMETER_TYPES = (float, int, bool)
MAX_STEP_LIMIT = 2**31 - 1  # steps are counted in int32
NUMPY_METHODS = ("view",)  # which Numba looks up in values of every type, before a field of the name


def _declaration_error(env: Any, problem: str) -> AuthoringError:
    """An error whose message names the module of the environment's functions, since a declaration has no name of its own."""
    module = next((f.__module__ for f in (env.reset, env.spaces) if callable(f) and hasattr(f, "__module__")), "")
    return AuthoringError(
        f"in {module}, {type(env).__name__}(...): {problem}" if module else f"{type(env).__name__}(...): {problem}"
    )


def describe_value(value: Any) -> str:
    """Returns a value, shortened, and its type, for the message of an error.

    Args:
        value: any object.
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Returns whether arrays of a type hold numbers: bool, integers or floats, and no complex numbers, dates, texts or objects.

    Args:
        dtype: the type.
    """
    return dtype.kind in "biuf"


def require_functions(env: Any, *names: str, optional: bool = False) -> None:
    """Checks that fields of an environment are functions.

    Args:
        env: the environment, a `SingleAgentEnv` or a `MultiAgentEnv`.
        names: the names of the fields.
        optional: whether a field may also be None.

    Raises:
        AuthoringError: a field is something else.
    """
    for name in names:
        value = getattr(env, name)
        if not callable(value) and not isinstance(value, ByRole) and not (optional and value is None):
            raise _declaration_error(env, f"{name} is {describe_value(value)}; it must be a function.")


def convert_functions_by_role(env: Any, *names: str) -> None:
    """Replaces each dict {role: function} among fields of an environment by a `ByRole`, so that the environment is hashable.

    Args:
        env: the environment, a `MultiAgentEnv`.
        names: the names of the fields.

    Raises:
        AuthoringError: a value of a dict is no function, or a dict is empty.
    """
    for name in names:
        value = getattr(env, name)
        if not isinstance(value, Mapping):
            continue
        for role, function in value.items():
            if not isinstance(role, str) or not callable(function):
                raise _declaration_error(
                    env, f"{name}[{role!r}] is {describe_value(function)}; a role has a name and a function."
                )
        if not value:
            raise _declaration_error(env, f"{name} is an empty dict; it must have a function for each role.")
        object.__setattr__(env, name, ByRole(tuple(value), tuple(value.values())))


def require_optional_fields(env: Any) -> None:
    """Checks the fields that environments of one and of many agents have in common, except those of functions of the state.

    Sequences of names become tuples, so that the environment is hashable.

    Args:
        env: the environment, a `SingleAgentEnv` or a `MultiAgentEnv`; its parameters are checked.

    Raises:
        AuthoringError: a field is something else.
    """
    require_functions(env, "field_ranges", "check", "critic_observation", "draw", "events", optional=True)
    for name in ("reset_options", "structural", "feature_names", "action_names"):
        value = getattr(env, name)
        if name.endswith("_names") and callable(value):
            continue
        if not isinstance(value, tuple | list) or not all(isinstance(part, str) for part in value):
            raise _declaration_error(env, f"{name} is {describe_value(value)}; it must be a tuple of names, even of one.")
        object.__setattr__(env, name, tuple(value))
        unknown = [part for part in value if part not in env.params._fields] if not name.endswith("_names") else []
        if unknown:
            known = ", ".join(env.params._fields)
            raise _declaration_error(env, f"{name} has {unknown[0]!r}, which is no parameter; there are {known}.")
    limit, threshold = env.max_episode_steps, env.reward_threshold
    if limit is not None and (type(limit) is not int or not 1 <= limit <= MAX_STEP_LIMIT):
        raise _declaration_error(
            env, f"max_episode_steps is {describe_value(limit)}; it must be an integer from 1 to {MAX_STEP_LIMIT}, or None."
        )
    if threshold is not None and (type(threshold) not in (int, float) or not abs(threshold) < math.inf):
        raise _declaration_error(env, f"reward_threshold is {describe_value(threshold)}; it must be a finite number, or None.")
    if env.cuda_c is not None and not isinstance(env.cuda_c, str):
        raise _declaration_error(env, f"cuda_c is {describe_value(env.cuda_c)}; it must be the name of a file, or None.")
    if type(env.render_fps) is not int or env.render_fps < 1:
        raise _declaration_error(env, f"render_fps is {describe_value(env.render_fps)}; it must be an integer of at least 1.")


def require_state(env: Any) -> None:
    """Checks that the state is a NamedTuple class.

    Args:
        env: the environment, a `SingleAgentEnv` or a `MultiAgentEnv`.

    Raises:
        AuthoringError: it is something else.
    """
    if not (isinstance(env.state, type) and issubclass(env.state, tuple) and hasattr(env.state, "_fields")):
        raise _declaration_error(
            env,
            f"state is {describe_value(env.state)}; it must be a NamedTuple class: class State(NamedTuple), and state=State.",
        )
    _require_field_names(env, env.state)


def require_known_fields(cls: Any, names: Collection[str]) -> None:
    """Checks the names of the fields with which an environment is declared.

    Args:
        cls: `SingleAgentEnv` or `MultiAgentEnv`.
        names: those of the keyword arguments.

    Raises:
        AuthoringError: the class has no such field.
    """
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise AuthoringError(f"{cls.__name__}(...) has no field {', '.join(map(repr, unknown))}; it has {', '.join(known)}.")


def _require_field_names(env: Any, named_tuple: Any) -> None:
    """Raises AuthoringError if a field of a state or of parameters has a name that compiled functions cannot read."""
    for name in NUMPY_METHODS:
        if name in named_tuple._fields:
            problem = f"{named_tuple.__name__} has a field {name!r}, which compiled code takes for NumPy's method: rename it."
            raise _declaration_error(env, problem)


def require_params(env: Any) -> None:
    """Checks that the parameters are a NamedTuple instance whose values have the types that its class declares.

    Args:
        env: the environment, a `SingleAgentEnv` or a `MultiAgentEnv`.

    Raises:
        AuthoringError: they are something else, or a value has another type.
    """
    params = env.params
    if not (isinstance(params, tuple) and hasattr(params, "_fields")):
        remedy = "params=Params()" if isinstance(params, type) else "class Params(NamedTuple), and params=Params()"
        raise _declaration_error(
            env, f"params is {describe_value(params)}; it must be an instance of a NamedTuple class: {remedy}."
        )
    _require_field_names(env, type(params))
    hints = get_type_hints(type(params))
    for name, value in zip(params._fields, params, strict=True):
        field = f"field {name!r} of {type(params).__name__}"
        if type(value) not in PARAMETER_TYPES:
            raise _declaration_error(
                env, f"{field} has the default {describe_value(value)}; a parameter is a Python float, int or bool."
            )
        if hints.get(name) in PARAMETER_TYPES and type(value) is not hints[name]:
            own_type = f"change the default, or declare it as {type(value).__name__}"
            remedy = f"write {float(value)!r}" if hints[name] is float else own_type
            problem = f"{field} is declared {hints[name].__name__}, and its default {describe_value(value)} has another type"
            raise _declaration_error(env, f"{problem}: {remedy}.")


PHASE_KINDS = "a function, each(...), assign(...), or a reduction such as count_of(...)"


def require_phases(env: Any) -> None:
    """Checks that the phases are a tuple of functions, assignments and reductions, and `reset` a function or such a tuple.

    Args:
        env: the environment, a `MultiAgentEnv`.

    Raises:
        AuthoringError: they are something else.
    """
    if not callable(env.reset):
        if not isinstance(env.reset, tuple) or hasattr(env.reset, "_fields") or not env.reset:
            raise _declaration_error(env, f"reset is {describe_value(env.reset)}; it must be a function, or a tuple of phases.")
        for number, phase in enumerate(env.reset):
            _require_phase(env, f"phase {number} of reset", phase)
    if not isinstance(env.phases, tuple) or hasattr(env.phases, "_fields"):
        raise _declaration_error(
            env, f"phases is {describe_value(env.phases)}; it must be a tuple, even of one phase: phases=(move,)."
        )
    for number, phase in enumerate(env.phases):
        _require_phase(env, f"phase {number}", phase)


def _require_phase(env: Any, name: str, phase: Any) -> None:
    """Raises AuthoringError unless `phase` is one, whose function can be called and whose names are text."""
    if not callable(phase) and not isinstance(phase, Each | Assign | Reduction):
        raise _declaration_error(env, f"{name} is {describe_value(phase)}; it must be {PHASE_KINDS}.")
    if not callable(phase) and not callable(phase.function):
        raise _declaration_error(env, f"{name} has the function {describe_value(phase.function)}; it must be a function.")
    if isinstance(phase, Reduction) and phase.at is not None:
        _require_scatter(env, name, phase)


def _require_scatter(env: Any, name: str, phase: Reduction) -> None:
    """Raises AuthoringError unless `at` of a reduction is a function, and its result does not depend on an order."""
    if not callable(phase.at):
        raise _declaration_error(env, f"{name} has at={describe_value(phase.at)}; it must be a function at(index, s, p).")
    hint = get_type_hints(env.state, include_extras=True).get(phase.field)
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    element_types = get_args(get_args(hint)[1]) if get_origin(hint) is np.ndarray else ()  # none of a scalar
    if phase.kind == "sum" and element_types and np.dtype(element_types[0]) == np.float32:
        code = phase.function.__code__
        line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
        raise AuthoringError(
            f"{code.co_filename}, line {code.co_firstlineno}, `{line}`: sum_of({phase.field!r}, ..., at=...) adds floats, "
            "whose rounding depends on the order of threads: declare the field as Ints, and add integers of a fixed scale, "
            "such as int(1000.0 * x)."
        )
