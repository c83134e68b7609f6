"""The dialect of device code, in types: a look at the type of every value in the author's compiled functions."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import numpy as np
from numba import typeof, types
from numba.core import ir

from gpuvec.engine.compiler.diagnostics import authoring_error, explain_compiler_errors
from gpuvec.engine.compiler.functions import compile_for, device_function
from gpuvec.engine.layout.space_layout import ActionLayout
from gpuvec.errors import AuthoringError
from gpuvec.random import Key

KEY = typeof(Key._make([*(np.uint32(0),) * 4, np.int32(0)]))


def action_type(actions: ActionLayout) -> Any:
    """The Numba type of an agent's action."""
    number = actions.dtype(0)
    return typeof((number,) * actions.components if actions.components else number)


def check_parameters(name: str, function: Any, expected: str) -> None:
    """Raises unless `function` is a plain function with as many parameters as `expected` names.

    Raises:
        AuthoringError: what it is instead.
    """
    if not isinstance(function, FunctionType):
        raise AuthoringError(f"{name} is a {type(function).__name__}; it must be a plain function {name}({expected}).")
    if len(inspect.signature(function).parameters) != expected.count(",") + 1:
        name = function.__name__
        raise authoring_error(function, f"{name}{inspect.signature(function)} must be {name}({expected})")


def width(function: Any, kind: Any, expected: str) -> int:
    """How many numbers a result of Numba type `kind` holds.

    Raises:
        AuthoringError: it is no tuple of numbers.
    """
    if not isinstance(kind, types.BaseTuple):
        raise authoring_error(function, f"it returns {kind}; it must return {expected}: (a, b), or (a,) for one")
    for k, part in enumerate(kind):
        if not isinstance(part, types.Number | types.Boolean):
            raise authoring_error(function, f"value {k} of those it returns is {part}; it must be a number")
    return len(kind)


def typed(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Compiles `function` as kernels do, for arguments of these Numba types, and returns the type of its result.

    Raises:
        AuthoringError: what cannot be compiled, or a value that no kernel should hold.
    """
    with explain_compiler_errors(function):
        dispatcher = device_function(function)
        compile_for(dispatcher, arguments)
    _check_values(dispatcher, arguments, set())
    return dispatcher.overloads[arguments].signature.return_type


def _check_values(dispatcher: Any, arguments: tuple[Any, ...], seen: set[Any]) -> None:
    """Raises for the first line with a container, or with a float64 that is made of nothing that is one."""
    if (dispatcher, arguments) in seen:
        return
    seen.add((dispatcher, arguments))
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
        text = isinstance(kind, types.UnicodeType) or (isinstance(kind, types.StringLiteral) and isinstance(value, ir.Expr))
        if text or isinstance(kind, types.List | types.Set | types.DictType):
            what = "makes a list, set, dict or string, which device code does not have; use a tuple, or fields of the state"
            raise authoring_error(dispatcher.py_func, what, line)
        called = annotated.typemap[value.func.name] if isinstance(value, ir.Expr) and value.op == "call" else None
        if isinstance(called, types.Dispatcher) and not called.dispatcher.py_func.__module__.startswith("gpuvec."):
            _check_values(called.dispatcher, tuple(annotated.calltypes[value].args), seen)
        operands = value.list_vars() if isinstance(value, ir.Expr) else [value] if isinstance(value, ir.Var) else []
        made_of = [annotated.typemap[v.name] for v in operands]
        if _wide(kind) and not isinstance(value, ir.Arg) and not any(map(_wide, made_of)):
            raise authoring_error(dispatcher.py_func, f"makes a float64; {_remedy(value, made_of)}", line)


def _wide(kind: Any) -> bool:
    """Whether a value of that Numba type holds a float64."""
    parts = tuple(kind) if isinstance(kind, types.BaseTuple) else ()
    parts += (kind.dtype,) if isinstance(kind, types.Array) else (kind.type,) if isinstance(kind, types.Optional) else ()
    return kind == types.float64 or any(map(_wide, parts))


def _remedy(value: Any, made_of: list[Any]) -> str:
    """What to do about a float64 that comes from `value`, an expression of parts of those types."""
    if isinstance(value, ir.Var):
        return "a variable is an int on one path and a float on another: write 0.0, not 0"
    if isinstance(value, ir.Expr) and value.op == "getattr" and isinstance(made_of[0], types.Module):
        name = f"{made_of[0].pymod.__name__}.{value.attr}"
        return f"only names of the module are read as float32: put {value.attr.upper()} = {name} there, and use that"
    if any(isinstance(kind, types.Integer) for kind in made_of):
        return "an int met a float: write 2.0, not 2, and np.float32(k) for an int k"
    if isinstance(value, ir.Expr):
        return "convert it with np.float32(...)"
    return "make it a float32: np.array(..., np.float32) for a table"
