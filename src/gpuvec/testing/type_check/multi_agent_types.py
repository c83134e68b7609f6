"""The functions of a `MultiAgentEnv`: their parameters, the types of what they return, and what they may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import typeof, types
from numba.np.numpy_support import from_dtype

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import ENGINE_FIELDS, MultiAgentSchema, make_schema
from gpuvec.errors import AuthoringError
from gpuvec.spec import MultiAgentEnv, Reduction, Time
from gpuvec.testing.type_check.typed_functions import KEY, action_type, check_parameters, typed, width

RESULTS = {  # of which Numba type a result must be, and what to do about another
    "float": (types.Float, "a float on every path: write 1.0, not 1"),
    "number": (types.Number, "a number on every path"),
    "bool": (types.Boolean, "a bool, as a comparison is"),
    "nothing": (types.NoneType, "nothing: write what is new to the state, s.x[i] = ..."),
}
REDUCED = {"count": (np.int32, "bool"), "least": (np.int32, "number"), "any": (np.bool_, "bool"), "all": (np.bool_, "bool")}


def check_types(env: MultiAgentEnv) -> str:
    """Compiles the author's functions as kernels do, and looks at the type of every value in them.

    Only `reset` and phases may write to the state, and not to role and agents_by_role. What a search finds is for
    `other_features` and `self_features` alone.

    Raises:
        AuthoringError: a function that cannot be compiled, a value that no kernel should hold, a wrong result, or a write
            where there must be none.
    """
    schema = make_schema(env)
    assert isinstance(schema, MultiAgentSchema), "a MultiAgentEnv has a schema"
    _check_tables(env)
    i, p = types.int32, typeof(kernel_params(env))
    t = types.NamedTuple([types.int32] * 2, Time)
    action, mutable = action_type(schema.action), _state_type(env, schema, writes=True)
    s, found = _state_type(env, schema), _state_type(env, schema, found=True)
    observe, see, _, look = schema.observation
    before = (look,) if isinstance(look, Reduction) else ()

    def returns(name: str, function: Any, parameters: str, arguments: tuple[Any, ...], result: str) -> None:
        check_parameters(name, function, parameters)
        given, (allowed, rule) = typed(function, arguments), RESULTS[result]
        if not isinstance(given, allowed):
            raise authoring_error(function, f"{name} returns {types.unliteral(given)}; it must return {rule}")

    returns("reset", env.reset, "i, s, key, p", (i, mutable, KEY, p), "nothing")
    for phase in (*env.phases, *before):
        if isinstance(phase, Reduction):
            dtype, result = REDUCED[phase.kind]
            name = f"{phase.kind}_of({phase.field!r}, ...)"
            if schema.scalar_fields.get(phase.field) is not dtype:
                kind = "bool" if dtype is np.bool_ else "int"
                raise AuthoringError(f"{name} sets a field of the state that must be one {kind} for the env.")
            returns(f"the function of {name}", phase.of, "i, s, p", (i, s, p), result)
        else:
            name = f"phase `{getattr(phase, '__name__', phase)}`"
            returns(name, phase, "i, s, action, key, p", (i, mutable, action, KEY, p), "nothing")
    returns("reward", env.reward, "i, s, t, p", (i, s, t, p), "float")
    returns("terminated", env.terminated, "i, s, p", (i, s, p), "bool")
    if env.active is not None:
        returns("active", env.active, "i, s, p", (i, s, p), "bool")
    if schema.search is not None:
        returns("distance", schema.search.distance, "i, j, s, p", (i, i, s, p), "float")
        if schema.search.mask is not None:
            returns("mask", schema.search.mask, "i, s, p", (i, s, p), "bool")
    seen = _features("other_features", see, "i, slot, s, t, p", (i, i, found, t, p))
    _check_row(schema, seen, _features("self_features", observe, "i, s, t, p", (i, found, t, p)))
    return "every value is a float32, an integer or a bool; only reset and phases write"


def _features(name: str, function: Callable[..., Any] | None, parameters: str, arguments: tuple[Any, ...]) -> int:
    """How many numbers an observing function gives; none if there is none."""
    if function is None:
        return 0
    check_parameters(name, function, parameters)
    return width(function, typed(function, arguments), "a tuple of numbers")


def _check_row(schema: MultiAgentSchema, seen: int, own: int) -> None:
    observation = schema.observation
    if (observation.other_features is None) != (observation.max_neighbors == 0):
        what = (
            "other_features is missing" if observation.other_features is None else "there is nothing for other_features to fill"
        )
        raise AuthoringError(
            f"observation(p) has max_neighbors={observation.max_neighbors}, and {what}; give both, or neither."
        )
    total = seen * observation.max_neighbors + own
    if total != schema.num_features:
        pairs = f"{observation.max_neighbors} neighbors of {seen} values"
        what = f"{pairs} and {own} of its own make {total} values, but the observation space"
        raise authoring_error(observation.self_features, f"{what} has shape ({schema.num_features},)")


def _check_tables(env: MultiAgentEnv) -> None:
    for name, table in (env.tables(env.params) if env.tables is not None else {}).items():
        if table.dtype not in (np.float32, np.int32, np.bool_):
            given = f"table {name!r} of tables(p) is {table.dtype}"
            raise AuthoringError(f"{given}; it must be float32, int32 or bool: np.array(..., np.float32).")


def _state_type(env: MultiAgentEnv, schema: MultiAgentSchema, writes: bool = False, found: bool = False) -> Any:
    """The Numba type of the state in functions that write to it, and in those that may read what a search found."""
    arrays = {
        k: types.Array(from_dtype(np.dtype(b.dtype)), len(b.shape), "C", readonly=not writes or k in ENGINE_FIELDS)
        for k, b in schema.array_fields.items()
    }
    arrays |= {} if found else dict.fromkeys(schema.search_fields, types.none)
    scalars = {k: from_dtype(np.dtype(dtype)) for k, dtype in schema.scalar_fields.items()}
    return types.NamedTuple([(arrays | scalars)[k] for k in env.state._fields], env.state)
