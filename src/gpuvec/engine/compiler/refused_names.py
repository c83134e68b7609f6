"""What an author's function may not read in device code, found in its bytecode before anything is compiled.

Numba for a CPU takes more of Python and NumPy than Numba for a GPU: functions of arrays, random numbers of its own, `print` and
`try`. Code with them would pass on one machine and end in an internal error of a compiler on another. So they are refused here,
where functions are prepared for every backend.
"""

from __future__ import annotations

import builtins
import dis
import math
import random
import types
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error

DRAWING = "draw with uniform, normal or randint and the key: other random numbers can be neither seeded nor repeated"
PRINTING = (
    "device code has no input or output: take it out, and look at `envs.get_state()`, or call the function by itself in Python"
)
CONTAINER = "device code makes no arrays: use numbers, tuples, fields of the state, or a table that the module makes once"
REMEDIES = {  # by name in NumPy; what is missing here has the name of its equal in math, or is a matter of arrays
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
HANDLERS = ("CHECK_EXC_MATCH", "BEFORE_WITH", "LOAD_SPECIAL", "PUSH_EXC_INFO")  # instructions; the last has no line of its own


def refuse_host_names(function: types.FunctionType) -> None:
    """Refuses what `function` reads, takes, or how it handles errors, if one backend would take it and another would not.

    Raises:
        AuthoringError: the line, what stands there, and what to write.
    """
    if function.__code__.co_kwonlyargcount:
        raise authoring_error(function, "device code has no parameters that are passed by keyword alone: take the * out")
    instructions = list(dis.get_instructions(function))
    handlers = sorted((HANDLERS.index(op.opname), n) for n, op in enumerate(instructions) if op.opname in HANDLERS)
    if handlers:
        line = _line(instructions[handlers[0][1]])
        raise authoring_error(function, "device code has no try or with statement, as nothing in it raises: write an if", line)
    for number, op in enumerate(instructions):
        found, name, value = _read(function, op)
        if not found:
            continue
        for after in instructions[number + 1 :]:
            if not isinstance(value, types.ModuleType) or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            if not hasattr(value, after.argval):
                break
            name, value = f"{name}.{after.argval}", getattr(value, after.argval)
        if (remedy := _remedy(value)) is not None:
            raise authoring_error(function, f"there is no {name} in device code; {remedy}", _line(op))


def _line(op: dis.Instruction) -> int | None:
    return op.positions.lineno if op.positions is not None else None


def _read(function: types.FunctionType, op: dis.Instruction) -> tuple[bool, str, Any]:
    """(whether the instruction reads a value of a module or a closure, its name, the value)."""
    if op.opname == "LOAD_GLOBAL":
        for scope in (function.__globals__, vars(builtins)):
            if op.argval in scope:
                return True, op.argval, scope[op.argval]
    if op.opname == "LOAD_DEREF" and op.argval in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(op.argval)]
        return True, op.argval, cell.cell_contents
    return False, "", None


def _remedy(value: Any) -> str | None:
    """What to write in place of `value`; None if a backend takes it only if all do."""
    if any(value is refused for refused in HOST_BUILTINS):
        return PRINTING
    owner, module = getattr(value, "__self__", None), getattr(value, "__module__", None) or ""
    if isinstance(owner, random.Random | np.random.RandomState | np.random.Generator) or module.startswith("numpy.random"):
        return DRAWING
    of_numpy = isinstance(value, np.ufunc) or (callable(value) and module.partition(".")[0] == "numpy")
    if not of_numpy or (isinstance(value, type) and issubclass(value, np.generic)):
        return None
    name = value.__name__
    if name in REMEDIES:
        return f"write {REMEDIES[name]}, which takes numbers: functions of NumPy take arrays"
    if isinstance(value, np.ufunc) and hasattr(math, name):
        return f"write math.{name}, which takes numbers: functions of NumPy take arrays"
    return CONTAINER
