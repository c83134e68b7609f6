"""Checks of an environment's declaration when it is made: each error names the field and what it must be."""

from __future__ import annotations

from typing import Any, get_type_hints

from gpuvec.errors import AuthoringError

PARAMETER_TYPES = (float, int, bool)


def _fault(env: Any, what: str) -> AuthoringError:
    """What is wrong in the declaration of `env`; the module of its functions names the file."""
    place = next((f.__module__ for f in (env.reset, env.spaces) if callable(f) and hasattr(f, "__module__")), "")
    return AuthoringError(f"in {place}, {type(env).__name__}(...): {what}" if place else f"{type(env).__name__}(...): {what}")


def _shown(value: Any) -> str:
    """A value and its type, in a few words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def require_functions(env: Any, *names: str, optional: bool = False) -> None:
    """Raises AuthoringError unless those fields of `env` can be called, or are None if they are `optional`."""
    for name in names:
        value = getattr(env, name)
        if not callable(value) and not (optional and value is None):
            raise _fault(env, f"{name} is {_shown(value)}; it must be a function.")


def require_state(env: Any) -> None:
    """Raises AuthoringError unless the state is a NamedTuple class."""
    if not (isinstance(env.state, type) and issubclass(env.state, tuple) and hasattr(env.state, "_fields")):
        raise _fault(
            env, f"state is {_shown(env.state)}; it must be a NamedTuple class: class State(NamedTuple), and state=State."
        )


def require_params(env: Any) -> None:
    """Raises AuthoringError unless the parameters are a NamedTuple whose values are of the types that it declares."""
    params = env.params
    if not (isinstance(params, tuple) and hasattr(params, "_fields")):
        remedy = "params=Params()" if isinstance(params, type) else "class Params(NamedTuple), and params=Params()"
        raise _fault(env, f"params is {_shown(params)}; it must be an instance of a NamedTuple class: {remedy}.")
    hints = get_type_hints(type(params))
    for name, value in zip(params._fields, params, strict=True):
        field = f"field {name!r} of {type(params).__name__}"
        if type(value) not in PARAMETER_TYPES:
            raise _fault(env, f"{field} has the default {_shown(value)}; a parameter is a float, an int or a bool of Python.")
        if hints.get(name) in PARAMETER_TYPES and type(value) is not hints[name]:
            kind = hints[name].__name__
            remedy = (
                f"write {float(value)!r}" if hints[name] is float else f"write one, or declare it as {type(value).__name__}"
            )
            raise _fault(env, f"{field} is declared {kind}, and its default {_shown(value)} is none: {remedy}.")


def require_phases(env: Any, reduction: type) -> None:
    """Raises AuthoringError unless the phases are a tuple of functions and of reductions."""
    if not isinstance(env.phases, tuple) or hasattr(env.phases, "_fields"):
        raise _fault(env, f"phases is {_shown(env.phases)}; it must be a tuple, also of one phase: phases=(move,).")
    for number, phase in enumerate(env.phases):
        if not callable(phase) and not isinstance(phase, reduction):
            raise _fault(
                env, f"phase {number} is {_shown(phase)}; it must be a function, or count_of, any_of, all_of or argmin_of."
            )
