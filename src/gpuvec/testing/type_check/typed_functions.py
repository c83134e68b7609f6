"""Checks that all values in the author's compiled functions are float32, integers, bools or tuples of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
from numba import typeof, types
from numba.core import ir
from numba.core.dispatcher import Dispatcher

from gpuvec.engine.compiler.diagnostics import authoring_error, explain_compiler_errors
from gpuvec.engine.compiler.functions import compile_for, device_function
from gpuvec.engine.layout.space_layout import ActionLayout
from gpuvec.errors import AuthoringError
from gpuvec.random import Key
from gpuvec.testing.type_check.key_use import key_fault

KEY = typeof(Key._make([*(np.uint32(0),) * 4, np.int32(0)]))


def action_type(actions: ActionLayout, is_multi_agent: bool = False) -> types.Type:
    """Returns the Numba type of the action of an agent.

    Args:
        actions: the layout of actions.
        is_multi_agent: whether functions of a multi-agent environment receive it, as an array if it is long.
    """
    number = actions.dtype(0)
    if is_multi_agent and actions.is_long:
        return types.Array(typeof(number), 1, "C", readonly=True)
    return typeof((number,) * actions.components if actions.components else number)


def allowed_action_type(space: gym.Space[Any]) -> types.Type:
    """Returns the Numba type of the argument `action` of an author's function `allowed`.

    Args:
        space: the action space of one agent.
    """
    return types.int32 if isinstance(space, gym.spaces.Discrete) else types.UniTuple(types.int32, 2)


def check_metrics(function: Callable[..., Any], arguments: tuple[types.Type, ...]) -> None:
    """Checks the function `metrics` of an environment.

    Args:
        function: the function.
        arguments: the Numba types of the state and the parameters.

    Raises:
        AuthoringError: it has other parameters, or returns other values than floats.
    """
    check_parameters("metrics", function, "s, p")
    result = result_type(function, arguments)
    tuple_width(function, result, "a NamedTuple of floats")
    for name, kind in zip(result.fields if isinstance(result, types.BaseNamedTuple) else (), result, strict=False):
        if not isinstance(kind, types.Float):
            raise authoring_error(function, f"metric {name!r} is {types.unliteral(kind)}; it must be a float: np.float32(x)")


def check_parameters(name: str, function: object, expected: str) -> None:
    """Checks that a field of an environment is a plain function with the right number of parameters.

    Args:
        name: the name of the field.
        function: the value of the field.
        expected: the names of the parameters, separated by commas.

    Raises:
        AuthoringError: it is something else, or has other parameters.
    """
    if not isinstance(function, FunctionType):
        raise AuthoringError(f"{name} is a {type(function).__name__}; it must be a plain function {name}({expected}).")
    if len(inspect.signature(function).parameters) != expected.count(",") + 1:
        name = function.__name__
        raise authoring_error(function, f"{name}{inspect.signature(function)} must be {name}({expected})")


def tuple_width(function: Callable[..., Any], result: types.Type, expected: str) -> int:
    """Returns the number of values that a function returns.

    Args:
        function: an author's function.
        result: the Numba type of its result.
        expected: a description of what it must return.

    Raises:
        AuthoringError: it does not return a tuple of numbers.
    """
    if not isinstance(result, types.BaseTuple):
        raise authoring_error(function, f"it returns {result}; it must return {expected}: (a, b), or (a,) for one")
    for k, part in enumerate(result):
        if not isinstance(part, types.Number | types.Boolean):
            raise authoring_error(function, f"value {k} of those it returns is {part}; it must be a number")
    return len(result)


def result_type(function: Callable[..., Any], arguments: tuple[types.Type, ...]) -> types.Type:
    """Compiles a function as kernels do, checks the types of all values in it, and returns the type of its result.

    Args:
        function: an author's function.
        arguments: the Numba types of its arguments.

    Raises:
        AuthoringError: the function cannot be compiled, or computes a value that is not allowed in a kernel.
    """
    with explain_compiler_errors(function):
        dispatcher: Any = device_function(function)
        compile_for(dispatcher, arguments)
    _check_value_types(dispatcher, arguments, set())
    return dispatcher.overloads[arguments].signature.return_type


def _check_value_types(
    dispatcher: Dispatcher, arguments: tuple[types.Type, ...], checked: set[tuple[Dispatcher, tuple[types.Type, ...]]]
) -> None:
    """Raises AuthoringError for the first line with a container, a float64 computed from other types, or a misused key."""
    if (dispatcher, arguments) in checked:
        return
    checked.add((dispatcher, arguments))
    compile_for(dispatcher, arguments)
    annotated = dispatcher.overloads[arguments].type_annotation
    statements = [statement for block in annotated.blocks.values() for statement in block.body]
    for inst in sorted(statements, key=lambda statement: statement.loc.line):
        line = inst.loc.line
        if isinstance(inst, ir.Raise | ir.StaticRaise | ir.DynamicRaise):
            raise authoring_error(dispatcher.py_func, "raises an error, which a GPU cannot; clip, or end the episode", line)
        if not isinstance(inst, ir.Assign):
            continue
        value, kind = inst.value, annotated.typemap[inst.target.name]
        is_text = isinstance(kind, types.UnicodeType) or (isinstance(kind, types.StringLiteral) and isinstance(value, ir.Expr))
        if is_text or isinstance(kind, types.List | types.Set | types.DictType):
            problem = "makes a list, set, dict or string, which device code does not have; use a tuple, or fields of the state"
            raise authoring_error(dispatcher.py_func, problem, line)
        misuse = key_fault(value, kind, lambda variable: annotated.typemap[variable.name])
        if misuse is not None:
            raise authoring_error(dispatcher.py_func, misuse, line)
        callee = annotated.typemap[value.func.name] if isinstance(value, ir.Expr) and value.op == "call" else None
        if isinstance(callee, types.Dispatcher) and not callee.dispatcher.py_func.__module__.startswith("gpuvec."):
            _check_value_types(callee.dispatcher, tuple(annotated.calltypes[value].args), checked)
        operands = value.list_vars() if isinstance(value, ir.Expr) else [value] if isinstance(value, ir.Var) else []
        operand_types = [annotated.typemap[v.name] for v in operands]
        if _has_float64(kind) and not isinstance(value, ir.Arg) and not any(map(_has_float64, operand_types)):
            raise authoring_error(dispatcher.py_func, f"makes a float64; {_remedy(value, operand_types)}", line)


def _has_float64(kind: types.Type) -> bool:
    """Whether a value of a Numba type contains a float64."""
    parts = tuple(kind) if isinstance(kind, types.BaseTuple) else ()
    parts += (kind.dtype,) if isinstance(kind, types.Array) else (kind.type,) if isinstance(kind, types.Optional) else ()
    return kind == types.float64 or any(map(_has_float64, parts))


def _remedy(value: ir.Inst, operand_types: list[types.Type]) -> str:
    """What the author can do about a float64 that `value` computes from operands of the given types."""
    if isinstance(value, ir.Var):
        return "a variable is an int on one path and a float on another: write 0.0, not 0"
    if isinstance(value, ir.Expr) and value.op == "getattr" and isinstance(operand_types[0], types.Module):
        name = f"{operand_types[0].pymod.__name__}.{value.attr}"
        return f"only names of the module are read as float32: put {value.attr.upper()} = {name} there, and use that"
    if any(isinstance(kind, types.Integer) for kind in operand_types):
        return "an int and a float are operands: write 2.0, not 2, and np.float32(k) for an int k"
    if isinstance(value, ir.Expr):
        return "convert it with np.float32(...)"
    return "make it a float32: np.array(..., np.float32) for a table"
