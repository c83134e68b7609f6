"""Arrays that check every index and can log every access with its field, its agent and its line."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.types import EnvState
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.testing.reference.checked_values import CheckedInt, DataInt

INTEGERS = (int, np.integer)
Index = Any  # anything that NumPy accepts as an index


class Access(NamedTuple):
    """A read of one agent's elements of a field, or a write to them."""

    field: str
    agent: int
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

    @staticmethod
    def of(array: NDArray[Any], name: str, log: AccessLog | None = None, data: bool = True) -> CheckedArray:
        """Returns a checked view of an array.

        Args:
            array: (...) array, whose memory the view shares.
            name: the name of the array in messages.
            log: the log to which accesses are added; None for no log.
            data: whether its integers come from data.
        """
        view = array.view(CheckedArray)
        view.name, view.log, view.integers = name, log, DataInt if data else CheckedInt
        return view

    def __array_finalize__(self, obj: object) -> None:
        """Initialises a new view or copy of `obj`, for NumPy. It has no log."""
        self.name, self.log = getattr(obj, "name", "an array"), None
        self.integers = getattr(obj, "integers", DataInt)

    def __getitem__(self, index: Index) -> Any:
        """Returns the elements at `index`, as an array of NumPy does; a single integer is a checked one."""
        self._access(index, False)
        element = np.ndarray.__getitem__(self, index)
        return self.integers(element) if isinstance(element, np.signedinteger) else element

    def __setitem__(self, index: Index, value: Any) -> None:
        """Writes `value` to `index`. An integer beyond the range of the dtype wraps, as in compiled code."""
        self._access(index, True)
        if isinstance(value, int) and self.dtype.kind == "i":
            half = 1 << (8 * self.dtype.itemsize - 1)
            value = (int(value) + half) % (2 * half) - half
        np.ndarray.__setitem__(self, index, value)

    def _access(self, index: Index, writes: bool) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        for k, part in enumerate(parts):
            if isinstance(part, INTEGERS) and not 0 <= part < self.shape[min(k, self.ndim - 1)]:
                problem = f"{self.name}[{', '.join(map(str, parts))}] does not exist"
                if part < 0:
                    raise IndexError(f"{problem}; where -1 stands for no agent, test for it first")
                raise IndexError(f"{problem}; its shape is {self.shape}")
        if self.log is None:
            return
        agent_index = parts[0]
        frame = sys._getframe(2)
        place = (writes, frame.f_code.co_filename, frame.f_lineno)
        if isinstance(agent_index, INTEGERS):
            self.log.append(Access(self.name, int(agent_index), *place))
        else:
            self.log.extend(Access(self.name, agent, *place) for agent in np.unique(np.arange(len(self))[agent_index]).tolist())


def checked_value(value: object, data: bool = True) -> Any:
    """Replaces integers and arrays, even within a tuple, by checked ones.

    Args:
        value: an argument of author code.
        data: whether its integers come from data.
    """
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


def checked_state(s: EnvState, log: AccessLog | None = None) -> EnvState:
    """Returns a view of a state with checked integers and arrays.

    Args:
        s: the state, whose arrays share their memory with the view.
        log: the log to which accesses to arrays are added; None for no log.
    """
    parts = (
        CheckedArray.of(v, k, log, data=k not in ENGINE_FIELDS) if isinstance(v, np.ndarray) else checked_value(v)
        for k, v in zip(s._fields, s, strict=True)
    )
    return type(s)(*parts)
