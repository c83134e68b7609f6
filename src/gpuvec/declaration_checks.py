"""Checks of a `SingleAgentEnv` or `MultiAgentEnv` when it is constructed. Each error names a field and what it must be."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from gpuvec.errors import AuthoringError
from gpuvec.phases import Assign, ByRole, Each, Reduction

PARAMETER_TYPES = (float, int, bool)


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
    hints = get_type_hints(type(params))
    for name, value in zip(params._fields, params, strict=True):
        field = f"field {name!r} of {type(params).__name__}"
        if type(value) not in PARAMETER_TYPES:
            raise _declaration_error(
                env, f"{field} has the default {describe_value(value)}; a parameter is a Python float, int or bool."
            )
        if hints.get(name) in PARAMETER_TYPES and type(value) is not hints[name]:
            declared_type, value_type = hints[name].__name__, type(value).__name__
            remedy = f"write {float(value)!r}"
            if hints[name] is not float:
                remedy = f"change the default, or declare it as {value_type}"
            raise _declaration_error(
                env, f"{field} is declared {declared_type}, and its default {describe_value(value)} has another type: {remedy}."
            )


PHASE_KINDS = "a function, each(...), assign(...), or a reduction such as count_of(...)"


def require_phases(env: Any) -> None:
    """Checks that the phases are a tuple of functions, assignments and reductions.

    Args:
        env: the environment, a `MultiAgentEnv`.

    Raises:
        AuthoringError: they are something else.
    """
    if not isinstance(env.phases, tuple) or hasattr(env.phases, "_fields"):
        raise _declaration_error(
            env, f"phases is {describe_value(env.phases)}; it must be a tuple, even of one phase: phases=(move,)."
        )
    for number, phase in enumerate(env.phases):
        _require_phase(env, f"phase {number}", phase)


def require_reset(env: Any) -> None:
    """Checks that `reset` is a function or a tuple of phases.

    Args:
        env: the environment, a `MultiAgentEnv`.

    Raises:
        AuthoringError: it is something else.
    """
    if callable(env.reset):
        return
    if not isinstance(env.reset, tuple) or hasattr(env.reset, "_fields") or not env.reset:
        raise _declaration_error(env, f"reset is {describe_value(env.reset)}; it must be a function, or a tuple of phases.")
    for number, phase in enumerate(env.reset):
        _require_phase(env, f"phase {number} of reset", phase)


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
    if phase.kind == "sum" and _dtype(get_type_hints(env.state, include_extras=True).get(phase.field)) == np.float32:
        code = phase.function.__code__
        line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
        raise AuthoringError(
            f"{code.co_filename}, line {code.co_firstlineno}, `{line}`: sum_of({phase.field!r}, ..., at=...) adds floats, "
            "whose rounding depends on the order of threads: declare the field as Ints, and add integers of a fixed scale, "
            "such as int(1000.0 * x)."
        )


def _dtype(hint: Any) -> Any:
    """The dtype of the elements of a field whose type is an array, from its annotation; None for any other type."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    element_types = get_args(get_args(hint)[1]) if get_origin(hint) is np.ndarray else ()
    return np.dtype(element_types[0]) if element_types else None
