"""Objects that compiled functions refer to as they are: `rules.first_state(...)`, where `rules` is a NamedTuple of functions.

Numba passes a NamedTuple as a value, whose members all have a type, and builds it again wherever it is read. In a compiled
function an object of this module is what a module is: Numba looks an attribute up when it infers types, as it does for
`math.sin`. So an object costs nothing, its other attributes may be of any type, and a number is a constant of the machine code.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from typing import Any

import numpy as np

from gpuvec.engine.compiler.numba_api import NumbaApi


def is_function_object(value: Any) -> bool:
    """Whether a value is an object of functions: a dataclass, or a NamedTuple that has more than numbers.

    Its class is one of the engine. An author's object would bring numbers that are not float32, and could change.
    """
    if not type(value).__module__.startswith("gpuvec.engine."):
        return False
    if isinstance(value, tuple):
        return hasattr(value, "_fields") and not _has_only_numbers(value)
    return is_dataclass(value) and not isinstance(value, type)


def _has_only_numbers(value: Any) -> bool:
    """Whether a value is a number, or a tuple of such values."""
    if isinstance(value, tuple):
        return all(map(_has_only_numbers, value))
    return isinstance(value, int | float | np.generic)


@cache
def function_object_class(numba: NumbaApi) -> Any:
    """Declares the class of the Numba types of such objects to `numba`, Numba or numba-cuda; each has a type of its own."""

    class FunctionObject(numba.types.Module):  # type: ignore[misc, name-defined]  # Numba has no annotations
        def __init__(self, value: Any) -> None:
            self.pymod = value
            super(numba.types.Module, self).__init__(f"{type(value).__name__} at {id(value):#x}")

        @property
        def key(self) -> int:
            return id(self.pymod)  # not its hash: a member may have none

    numba.extending.register_model(FunctionObject)(numba.data_models.OpaqueModel)
    return FunctionObject
