"""Arrays that check every index and can log every access: which field, whose element, and the line that does it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.testing.reference.checked_values import CheckedInt, DataInt

NUMBERS = (int, np.integer)


class Access(NamedTuple):
    """A look at one agent's elements of a field, or a write to them."""

    field: str
    agent: int
    writes: bool
    file: str
    line: int


class CheckedArray(np.ndarray[Any, np.dtype[Any]]):
    """An array as author code gets it.

    A negative index is refused: compiled code takes it for an element counted from the end. Integers that are taken out are
    checked integers that come from data. With a log every access to it is logged; parts that are taken out are not.
    """

    name: str
    log: list[Access] | None
    integers: type[CheckedInt]

    @staticmethod
    def of(array: Any, name: str, log: list[Access] | None = None, data: bool = True) -> CheckedArray:
        """A view of `array`, called `name` in messages; `data` says whether its integers come from data."""
        view = array.view(CheckedArray)
        view.name, view.log, view.integers = name, log, DataInt if data else CheckedInt
        return view  # type: ignore[no-any-return]  # what `view` makes has the type that it is given

    def __array_finalize__(self, obj: Any) -> None:
        """Called by NumPy for each new view or copy, which has no log."""
        self.name, self.log = getattr(obj, "name", "an array"), None
        self.integers = getattr(obj, "integers", DataInt)

    def __getitem__(self, index: Any) -> Any:
        """An element, or some, as an array of NumPy would give them."""
        self._look_at(index, False)
        found = np.ndarray.__getitem__(self, index)
        if isinstance(found, np.signedinteger):
            return self.integers(found)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes it there; an integer beyond the range of the array wraps, as it does once compiled."""
        self._look_at(index, True)
        if isinstance(value, int) and self.dtype.kind == "i":
            half = 1 << (8 * self.dtype.itemsize - 1)
            value = (int(value) + half) % (2 * half) - half
        np.ndarray.__setitem__(self, index, value)

    def _look_at(self, index: Any, writes: bool) -> None:
        places = index if isinstance(index, tuple) else (index,)
        for k, part in enumerate(places):
            if isinstance(part, NUMBERS) and not 0 <= part < self.shape[min(k, self.ndim - 1)]:
                what = f"{self.name}[{', '.join(map(str, places))}] does not exist"
                if part < 0:
                    raise IndexError(f"{what}; -1 stands for nobody, so ask for that first")
                raise IndexError(f"{what}; its shape is {self.shape}")
        if self.log is None:
            return
        whose = places[0]
        code = sys._getframe(2)
        place = (writes, code.f_code.co_filename, code.f_lineno)
        if isinstance(whose, NUMBERS):
            self.log.append(Access(self.name, int(whose), *place))
        else:
            self.log.extend(Access(self.name, agent, *place) for agent in np.unique(np.arange(len(self))[whose]).tolist())


def checked_value(value: Any, data: bool = True) -> Any:
    """`value` with checked integers and arrays, also within a tuple; `data` says whether integers come from data."""
    if isinstance(value, np.ndarray):
        return value if isinstance(value, CheckedArray) else CheckedArray.of(value, "an array", data=data)
    if isinstance(value, bool | np.bool_ | CheckedInt):
        return value
    if isinstance(value, int | np.signedinteger):
        return (DataInt if data else CheckedInt)(value)
    if isinstance(value, tuple) and value:
        parts = [checked_value(part, data) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def watched(s: Any, log: list[Access] | None = None) -> Any:
    """`s` with checked integers and arrays; these add each access to `log` if there is one, and share the memory of its own."""
    parts = (
        CheckedArray.of(v, k, log, data=k not in ENGINE_FIELDS) if isinstance(v, np.ndarray) else checked_value(v)
        for k, v in zip(s._fields, s, strict=True)
    )
    return type(s)(*parts)
