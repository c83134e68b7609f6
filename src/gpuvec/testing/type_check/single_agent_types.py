"""Checks the parameters and the types of the results of the functions of a `SingleAgentEnv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
from numba import typeof, types

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.functions import params_as_scalars
from gpuvec.engine.layout.buffers import SCALARS
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import MultiAgentSchema
from gpuvec.spec import SingleAgentEnv
from gpuvec.testing.type_check.typed_functions import (
    KEY,
    action_type,
    allowed_action_type,
    check_metrics,
    check_parameters,
    result_type,
    tuple_width,
)


def check_types(env: SingleAgentEnv) -> str:
    """Compiles the author's functions as kernels do, and checks the type of every value in them.

    Args:
        env: the environment.

    Returns:
        What was checked, as text.

    Raises:
        AuthoringError: a function cannot be compiled, computes a value that is not allowed in a kernel, or returns a wrong
            type.
    """
    schema = make_schema(env)
    arrays = schema.array_fields if isinstance(schema, MultiAgentSchema) else {}
    is_image = schema.obs.is_image
    reset_parameters, observe_parameters = "s, key, p" if arrays else "key, p", "cell, s, p" if is_image else "s, p"
    for name, expected in {"reset": reset_parameters, "step": "s, action, key, p", "observe": observe_parameters}.items():
        check_parameters(name, getattr(env, name), expected)
    action, p = action_type(schema.action), typeof(params_as_scalars(env.params))
    hints = get_type_hints(env.state, include_extras=True)
    zeros = {k: np.zeros(arrays[k].shape, arrays[k].dtype) if k in arrays else SCALARS[hint](0) for k, hint in hints.items()}
    state = typeof(env.state(**zeros))

    _check_state_type(env, env.reset, result_type(env.reset, ((state,) if arrays else ()) + (KEY, p)))
    result = result_type(env.step, (state, action, KEY, p))
    if not isinstance(result, types.BaseTuple) or len(result) != 3:
        raise authoring_error(env.step, f"it returns {result}; it must return (State, reward, terminated), on every path")
    after, reward, terminated = result
    _check_state_type(env, env.step, after)
    if not isinstance(reward, types.Float):
        raise authoring_error(
            env.step, f"the reward is {types.unliteral(reward)}; it must be a float on every path: write 1.0, not 1"
        )
    if not isinstance(terminated, types.Boolean):
        raise authoring_error(env.step, f"terminated is {types.unliteral(terminated)}; it must be a bool, as a comparison is")
    if env.allowed is not None:
        check_parameters("allowed", env.allowed, "action, s, p")
        is_allowed = result_type(env.allowed, (allowed_action_type(env.spaces(env.params)[1]), state, p))
        if not isinstance(is_allowed, types.Boolean):
            raise authoring_error(env.allowed, f"it returns {types.unliteral(is_allowed)}; it must return a bool")
    if env.metrics is not None:
        check_metrics(env.metrics, (state, p))
    expected_width = schema.obs.shape[0]
    cell = (types.UniTuple(types.int64, 2),) if is_image else ()
    kind = "channels" if is_image else "floats"
    width = tuple_width(env.observe, result_type(env.observe, (*cell, state, p)), f"a tuple of {expected_width} {kind}")
    if width != expected_width:
        raise authoring_error(env.observe, f"it returns {width} values, but the observation space has shape {schema.obs.shape}")
    return "every value is a float32, an integer or a bool"


def _check_state_type(env: SingleAgentEnv, function: Callable[..., Any], result: types.Type) -> None:
    """Raises AuthoringError unless the type of the result of a function is the state with fields of the declared types."""
    state = env.state.__name__
    if not isinstance(result, types.BaseNamedTuple) or result.instance_class is not env.state:
        raise authoring_error(function, f"the state that it returns is {result}; it must be a {state}, on every path")
    allowed = {float: (types.Float, "0.0, not 0"), int: (types.Integer, "np.int32(x)"), bool: (types.Boolean, "a comparison")}
    for (name, hint), kind in zip(get_type_hints(env.state, include_extras=True).items(), result, strict=True):
        if hint not in allowed:
            if not isinstance(kind, types.Array):
                problem = f"field {name!r} of {state} is an array and gets {kind}: write its elements, and return s.{name}"
                raise authoring_error(function, problem)
            continue
        if not isinstance(kind, allowed[hint][0]):
            problem = f"field {name!r} of {state} is declared as {hint.__name__} and gets {kind}: write {allowed[hint][1]}"
            raise authoring_error(function, problem)
