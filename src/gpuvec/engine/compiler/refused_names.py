"""A check for names and statements that device code must not contain, by its bytecode, before anything is compiled.

Numba for a CPU compiles more of Python and NumPy than Numba for a GPU: functions of arrays, its own random numbers, `print` and
`try`. Code that contains them would run on a CPU, and end in an internal error of the compiler for a GPU. So this check, which
is part of the compilation for every backend, refuses them.
"""

from __future__ import annotations

import builtins
import dis
import math
import random
import types
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error

RANDOM_REMEDY = "draw with uniform, normal or randint and the key: other random numbers can be neither seeded nor repeated"
OUTPUT_REMEDY = (
    "device code has no input or output: take it out, and look at `envs.get_state()`, or call the function by itself in Python"
)
ARRAY_REMEDY = "device code makes no arrays: use numbers, tuples, fields of the state, or a table that the module makes once"
# What replaces a function of NumPy, by its name. A function that is not listed has the same name in math, or is for arrays.
NUMPY_REPLACEMENTS = {
    "abs": "abs(x)", "absolute": "abs(x)", "fabs": "abs(x)",
    "minimum": "min(x, y)", "fmin": "min(x, y)", "maximum": "max(x, y)", "fmax": "max(x, y)", "clip": "min(max(x, low), high)",
    "sign": "math.copysign(1.0, x), or 1.0 if x > 0.0 else -1.0", "where": "a if condition else b", "square": "x * x",
    "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y", "true_divide": "x / y", "negative": "-x",
    "mod": "x % y", "remainder": "x % y", "floor_divide": "x // y", "power": "x**y", "float_power": "x**y",
    "arcsin": "math.asin", "arccos": "math.acos", "arctan": "math.atan", "arctan2": "math.atan2",
    "arcsinh": "math.asinh", "arccosh": "math.acosh", "arctanh": "math.atanh",
    "logical_and": "x and y", "logical_or": "x or y", "logical_not": "not x",
}  # fmt: skip
HOST_BUILTINS = tuple(getattr(builtins, name) for name in ("print", "input", "open", "breakpoint", "exec", "eval"))
# Instructions of `try` and `with`, in the order in which their lines are preferred for a message. The last has no line.
HANDLER_OPCODES = ("CHECK_EXC_MATCH", "BEFORE_WITH", "LOAD_SPECIAL", "PUSH_EXC_INFO")


class _NamedValue(NamedTuple):
    """A value that a function reads, and the expression that reads it."""

    name: str
    value: Any


def refuse_host_names(function: types.FunctionType) -> None:
    """Raises an error if `function` has a parameter or a statement, or reads a value, that only some backends can compile.

    Raises:
        AuthoringError: the message has the line, the name, and what to write in its place.
    """
    if function.__code__.co_kwonlyargcount:
        raise authoring_error(function, "device code has no keyword-only parameters: remove the *")
    instructions = list(dis.get_instructions(function))
    handlers = sorted(
        (HANDLER_OPCODES.index(op.opname), n) for n, op in enumerate(instructions) if op.opname in HANDLER_OPCODES
    )
    if handlers:
        line = _line(instructions[handlers[0][1]])
        raise authoring_error(function, "device code has no try or with statement, as nothing in it raises: write an if", line)
    for number, op in enumerate(instructions):
        named_value = _read_value(function, op)
        if named_value is None:
            continue
        name, value = _attribute_of_module(named_value, instructions[number + 1 :])
        if (remedy := _remedy(value)) is not None:
            raise authoring_error(function, f"there is no {name} in device code; {remedy}", _line(op))


def _line(op: dis.Instruction) -> int | None:
    return op.positions.lineno if op.positions is not None else None


def _read_value(function: types.FunctionType, op: dis.Instruction) -> _NamedValue | None:
    """Returns the value of the module or the closure that an instruction reads; None if it reads none."""
    if op.opname == "LOAD_GLOBAL":
        for scope in (function.__globals__, vars(builtins)):
            if op.argval in scope:
                return _NamedValue(op.argval, scope[op.argval])
    if op.opname == "LOAD_DEREF" and op.argval in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(op.argval)]
        return _NamedValue(op.argval, cell.cell_contents)
    return None


def _attribute_of_module(named_value: _NamedValue, next_instructions: list[dis.Instruction]) -> _NamedValue:
    """Returns the value that the next instructions read from a module, such as `np.linalg.norm`.

    If `named_value` is not a module, it is returned itself.
    """
    name, value = named_value
    for op in next_instructions:
        if not isinstance(value, types.ModuleType) or op.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        if not hasattr(value, op.argval):
            break
        name, value = f"{name}.{op.argval}", getattr(value, op.argval)
    return _NamedValue(name, value)


def _remedy(value: Any) -> str | None:
    """Returns what to write in place of `value`; None if either all backends can compile it or none."""
    if any(value is builtin for builtin in HOST_BUILTINS):
        return OUTPUT_REMEDY
    owner, module = getattr(value, "__self__", None), getattr(value, "__module__", None) or ""
    if isinstance(owner, random.Random | np.random.RandomState | np.random.Generator) or module.startswith("numpy.random"):
        return RANDOM_REMEDY
    is_numpy_function = isinstance(value, np.ufunc) or (callable(value) and module.partition(".")[0] == "numpy")
    if not is_numpy_function or (isinstance(value, type) and issubclass(value, np.generic)):
        return None
    name = value.__name__
    if name in NUMPY_REPLACEMENTS:
        return f"write {NUMPY_REPLACEMENTS[name]}, which takes numbers: functions of NumPy take arrays"
    if isinstance(value, np.ufunc) and hasattr(math, name):
        return f"write math.{name}, which takes numbers: functions of NumPy take arrays"
    return ARRAY_REMEDY
