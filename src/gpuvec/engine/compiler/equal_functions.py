"""Which functions are equal, so that one Numba function, which is compiled once, serves for all of them.

The engine composes its functions of closures: each reduction of an environment, for example, has its own function that adds two
numbers. A key consists of the code of a function and of all values that it refers to. Functions of the engine refer to other
functions that are shared already, so whole trees of calls are shared.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from gpuvec.engine.compiler.frozen import CONSTANT_TYPES


class ConstantNamespace(ModuleType):
    """An object whose attributes compiled functions read as constants, in the form that Numba knows for that: a module.

    What an attribute holds that has fields of its own, a dataclass or a NamedTuple, is a namespace as well.
    """

    def __init__(self, value: Any) -> None:
        """Wraps `value`, whose attributes must not change."""
        super().__init__(type(value).__name__)
        self.__dict__["wrapped_value"] = value

    def __getattr__(self, name: str) -> Any:
        """Returns the attribute of the value, the same object at each call."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = as_namespace(getattr(self.wrapped_value, name))
        return self.__dict__[name]


def as_namespace(value: Any) -> Any:
    """Returns a namespace of a dataclass or a NamedTuple; any other value as it is."""
    has_fields = hasattr(value, "__dataclass_fields__") or (isinstance(value, tuple) and hasattr(value, "_fields"))
    return ConstantNamespace(value) if has_fields and not isinstance(value, type) else value


def referenced_values(function: FunctionType) -> dict[str, Any] | None:
    """Returns {name: value} of the defaults, the closure and the globals of a function, or None if they cannot be compared.

    The content of an array can change, so a function that refers to one cannot be compared. A function cannot be compared
    either if a variable of its closure has no value yet, or if it defines other functions.

    Args:
        function: the function.
    """
    code, scope = function.__code__, function.__globals__
    # Some of these names are attributes. A global of the same name is compared then as well.
    values = {name: scope[name] for name in code.co_names if name in scope}
    try:
        values |= {name: cell.cell_contents for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
    except ValueError:
        return None
    for name in [name for name, value in values.items() if isinstance(value, ConstantNamespace)]:
        values |= _attributes_read(code, name, values.pop(name))
    values |= {"__defaults__": function.__defaults__, "__kwdefaults__": function.__kwdefaults__}
    has_function = any(isinstance(constant, CodeType) for constant in code.co_consts)
    has_array = any(isinstance(value, np.ndarray) for value in values.values())
    return None if has_function or has_array else values


def _attributes_read(code: CodeType, name: str, namespace: ConstantNamespace) -> Iterator[tuple[str, Any]]:
    """Yields (source, value) of the attributes of a namespace that code reads, such as ("ctx.ops.load", ...)."""
    source, value = "", None
    for instruction in dis.get_instructions(code):
        if isinstance(value, ConstantNamespace) and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            source, value = f"{source}.{instruction.argval}", getattr(value, instruction.argval)
        else:
            if source:
                yield source, value  # a namespace itself where code does more with it than read an attribute
            is_read = instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and instruction.argval == name
            source, value = (name, namespace) if is_read else ("", None)


def equality_key(function: FunctionType, values: dict[str, Any]) -> Any:
    """Returns a hashable key, which is equal for functions of equal code and values for as long as `values` exists.

    Objects other than numbers, text and tuples are equal only to themselves.

    Args:
        function: the function.
        values: its `referenced_values`.
    """
    code = function.__code__
    return function.__qualname__, code.co_filename, code, tuple(values), tuple(map(_value_key, values.values()))


def _value_key(value: Any) -> Any:
    """A key by which equal values of the same type are equal: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    kind = type(value)
    if kind in CONSTANT_TYPES:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, tuple):
        return kind, tuple(map(_value_key, value))
    # No other object has this address while `values` exists.
    return kind, id(value)
