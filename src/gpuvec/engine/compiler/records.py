"""Objects that compiled functions refer to as they are: `rules.first_state(...)`, where `rules` is a NamedTuple of functions.

Numba passes a NamedTuple as a value, whose members all have a type, and builds it again wherever it is read. In a compiled
function an object of this module is what a module is: Numba looks an attribute up when it infers types, as it does for
`math.sin`. So an object costs nothing, its other attributes may be of any type, and a number is a constant of the machine code.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from typing import Any

from gpuvec.engine.compiler.numba_api import NumbaApi


def is_record(value: Any) -> bool:
    """Whether a value is an object of functions: a dataclass, or a NamedTuple one of whose members can be called."""
    if isinstance(value, tuple):
        return hasattr(value, "_fields") and any(map(callable, value))
    return is_dataclass(value) and not isinstance(value, type)


@cache
def record_class(numba: NumbaApi) -> Any:
    """Declares the class of the Numba types of records to `numba`, Numba or numba-cuda; each record has a type of its own."""

    class Record(numba.types.Module):  # type: ignore[misc, name-defined]  # Numba has no annotations
        def __init__(self, record: Any) -> None:
            self.pymod = record
            super(numba.types.Module, self).__init__(f"{type(record).__name__} at {id(record):#x}")

        @property
        def key(self) -> int:
            return id(self.pymod)  # not its hash: a member may have none

    numba.extending.register_model(Record)(numba.data_models.OpaqueModel)
    return Record
