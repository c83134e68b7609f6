"""Arrays and tuples that check every index. Arrays can also log every access with its field, its agent and its line."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import EnvState
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.testing.reference.checked_values import CheckedInt, DataInt

INTEGERS = (int, np.integer)
Index = Any  # anything that NumPy accepts as an index


class Access(NamedTuple):
    """A read of the numbers of a field that belong to one element of its index set, or a write to them."""

    field: str
    element: tuple[int, ...]  # the index in the set: (agent,), or () in a field of the world
    writes: bool
    file: str
    line: int


AccessLog = list[Access]


class CheckedArray(np.ndarray[Any, np.dtype[Any]]):
    """The array that author code receives.

    A negative index raises an error, since compiled code would count it from the end. Integer elements are checked integers.
    With a log, every access to the array is logged. Accesses to slices of it are not.
    """

    name: str
    log: AccessLog | None
    integers: type[CheckedInt]
    num_set_axes: int  # the first axes, which are those of the field's index set

    @staticmethod
    def of(
        array: NDArray[Any], name: str, log: AccessLog | None = None, data: bool = True, num_set_axes: int = 1
    ) -> CheckedArray:
        """Returns a checked view of an array.

        Args:
            array: (...) array, whose memory the view shares.
            name: the name of the array in messages.
            log: the log to which accesses are added; None for no log.
            data: whether its integers come from data.
            num_set_axes: the number of axes of the index set that it belongs to.
        """
        view = array.view(CheckedArray)
        view.name, view.log, view.integers = name, log, DataInt if data else CheckedInt
        view.num_set_axes = num_set_axes
        return view

    def __array_finalize__(self, obj: object) -> None:
        """Initialises a new view or copy of `obj`, for NumPy. It has no log."""
        self.name, self.log = getattr(obj, "name", "an array"), None
        self.integers = getattr(obj, "integers", DataInt)
        self.num_set_axes = getattr(obj, "num_set_axes", 1)

    def __getitem__(self, index: Index) -> Any:
        """Returns the elements at `index`, as an array of NumPy does; a single integer is a checked one."""
        self._access(index, False)
        element = np.ndarray.__getitem__(self, index)
        return self.integers(element) if isinstance(element, np.integer) else element

    def __setitem__(self, index: Index, value: Any) -> None:
        """Writes `value` to `index`. An integer beyond the range of the dtype wraps, as in compiled code."""
        self._access(index, True)
        if isinstance(value, int) and self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            value = (int(value) - limits.min) % (1 << 8 * self.dtype.itemsize) + limits.min
        np.ndarray.__setitem__(self, index, value)

    def _access(self, index: Index, writes: bool) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        for k, part in enumerate(parts):
            size = self.shape[min(k, self.ndim - 1)]
            if isinstance(part, INTEGERS) and not 0 <= part < size:
                raise _index_error(f"{self.name}[{', '.join(map(str, parts))}]", bool(part < 0), f"shape is {self.shape}", size)
        if self.log is None:
            return
        set_index = parts[: self.num_set_axes]
        frame = sys._getframe(2)
        place = (writes, frame.f_code.co_filename, frame.f_lineno)
        if len(set_index) == self.num_set_axes and all(isinstance(part, INTEGERS) for part in set_index):
            self.log.append(Access(self.name, tuple(map(int, set_index)), *place))
        else:
            is_accessed = np.zeros(self.shape[: self.num_set_axes], np.bool_)
            is_accessed[set_index] = True
            self.log.extend(Access(self.name, tuple(element), *place) for element in np.argwhere(is_accessed).tolist())


class CheckedTuple(tuple[Any, ...]):
    """A tuple that author code receives, in which a computed index has to exist. A literal index may be negative."""

    name = "a tuple"

    @staticmethod
    def of(parts: Iterable[object], name: str) -> CheckedTuple:
        """Returns a tuple.

        Args:
            parts: its elements.
            name: the name of the tuple in messages.
        """
        checked = CheckedTuple(parts)
        checked.name = name
        return checked

    def __getitem__(self, index: Index) -> Any:
        """Returns the elements at `index`, as a tuple does."""
        if isinstance(index, CheckedInt) and not 0 <= index < len(self):
            raise _index_error(f"{self.name}[{int(index)}]", index < 0, f"length is {len(self)}", len(self))
        return super().__getitem__(index)


def _index_error(element: str, is_negative: bool, size_text: str, size: int) -> IndexError:
    """An error about an index that does not exist; compiled code would read or write other memory, or count from the end."""
    if is_negative:
        allowed = f"the index must be from 0 to {size - 1}, and Python would count a negative one from the end"
        return IndexError(f"{element} does not exist; where -1 stands for no agent, test for it first; {allowed}")
    return IndexError(f"{element} does not exist; its {size_text}, so clip the index to 0 to {size - 1}, or test it first")


STALE = {"f": math.nan, "b": True}  # {kind of dtype: a value that the last episode may have left}


def stale_array(buffer: Buffer) -> NDArray[Any]:
    """Returns a field with values that the last episode may have left.

    Args:
        buffer: the shape and the dtype of the field.
    """
    dtype = np.dtype(buffer.dtype)
    value = np.iinfo(buffer.dtype).max if dtype.kind in "iu" else STALE[dtype.kind]
    return np.full(buffer.shape, value, dtype)


def checked_value(value: object, data: bool = True, name: str | None = None) -> Any:
    """Replaces integers, arrays and tuples, even within a tuple, by checked ones.

    Args:
        value: an argument of author code.
        data: whether its integers come from data.
        name: the name of the value in messages.
    """
    if isinstance(value, np.ndarray):
        return value if isinstance(value, CheckedArray) else CheckedArray.of(value, name or "an array", data=data)
    if isinstance(value, bool | np.bool_ | CheckedInt):
        return value
    if isinstance(value, int | np.signedinteger):
        return (DataInt if data else CheckedInt)(value)
    if isinstance(value, tuple) and value:
        parts = [checked_value(part, data, name) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else CheckedTuple.of(parts, name or CheckedTuple.name)
    return value


def checked_state(s: EnvState, log: AccessLog | None = None, num_set_axes: Mapping[str, int] | None = None) -> EnvState:
    """Returns a view of a state with checked integers and arrays.

    Args:
        s: the state, whose arrays share their memory with the view.
        log: the log to which accesses to arrays are added; None for no log.
        num_set_axes: {array field: the number of axes of its index set}; None if all fields belong to the agents.
    """
    axes = num_set_axes or {}
    parts = (
        CheckedArray.of(v, k, log, k not in ENGINE_FIELDS, axes.get(k, 1)) if isinstance(v, np.ndarray) else checked_value(v)
        for k, v in zip(s._fields, s, strict=True)
    )
    return type(s)(*parts)
