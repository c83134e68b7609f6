"""The metrics of an environment: what its function `metrics` returns, and how each is combined over an episode."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin, get_type_hints

from gpuvec.engine.compiler.functions import author_function
from gpuvec.engine.layout.function_checks import with_line_of
from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment

COMBINE = {  # {kind: source of the combination of `old`, that of the earlier steps, with the `value` of a step}
    "last": "value",
    "mean": "old + value",
    "sum": "old + value",
    "min": "value if value < old else old",
    "max": "value if value > old else old",
}


def metric_kinds(env: Environment) -> dict[str, str]:
    """Returns {name: kind} of the metrics of an environment; kinds are those of `COMBINE`.

    Args:
        env: the environment.

    Raises:
        AuthoringError: `metrics` does not declare a NamedTuple of floats as its result.
    """
    if env.metrics is None:
        return {}
    with with_line_of(env.metrics):
        return _kinds(author_function(env.metrics))


def _kinds(metrics: Any) -> dict[str, str]:
    """The kinds that the annotation of a function declares."""
    # Only the result's, because a function that comes from another process has no names but those that its code reads.
    declaration = type("Declaration", (), {"__annotations__": {"result": metrics.__annotations__.get("return")}})
    try:
        result = get_type_hints(declaration, metrics.__globals__, include_extras=True)["result"]
    except NameError as error:
        raise AuthoringError(f"the annotation of metrics names {error.name!r}, which its module does not have.") from error
    if not (isinstance(result, type) and issubclass(result, tuple) and hasattr(result, "_fields")):
        raise AuthoringError(
            f"metrics(s, p) is annotated to return {result}; it must be a NamedTuple class: def metrics(s, p) -> Metrics."
        )
    hints = get_type_hints(result, include_extras=True)
    return {name: _kind(name, hints[name]) for name in result._fields}


def _kind(name: str, hint: Any) -> str:
    """The kind of a metric, "last" if its annotation does not say it."""
    base, *arguments = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kind = arguments[0] if arguments else "last"
    if base is not float or len(arguments) > 1 or kind not in COMBINE:
        raise AuthoringError(
            f"metric {name!r} is {hint}; it must be float, or Annotated[float, kind] with a kind of {', '.join(COMBINE)}."
        )
    return str(kind)
