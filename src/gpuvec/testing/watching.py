"""States that tell about every access: which field, whose element, and the line that reads or writes it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

NUMBERS = (int, np.integer)


class Access(NamedTuple):
    """A look at one agent's elements of a field, or a write to them."""

    field: str
    agent: int
    writes: bool
    file: str
    line: int


class Watched(np.ndarray[Any, np.dtype[Any]]):
    """The elements of a field for all agents, as author code gets them; what it takes out of them is not watched."""

    name: str
    log: list[Access]

    def __getitem__(self, index: Any) -> Any:
        """An element, or some, as an array of NumPy would give them."""
        self._tell(index, False)
        return self.view(np.ndarray)[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes it there."""
        self._tell(index, True)
        self.view(np.ndarray)[index] = value

    def _tell(self, index: Any, writes: bool) -> None:
        whose, *rest = index if isinstance(index, tuple) else (index,)
        for part in (whose, *rest):
            if isinstance(part, NUMBERS) and part < 0:
                what = f"{self.name}[{', '.join(map(str, (whose, *rest)))}] does not exist"
                raise IndexError(f"{what}; -1 stands for nobody, so ask for that first")
        code = sys._getframe(2)
        place = (writes, code.f_code.co_filename, code.f_lineno)
        if isinstance(whose, NUMBERS):
            self.log.append(Access(self.name, int(whose), *place))
        else:
            self.log.extend(Access(self.name, agent, *place) for agent in np.unique(np.arange(len(self))[whose]).tolist())


def watched(s: Any, log: list[Access]) -> Any:
    """`s` with arrays that add each access to `log`; they share the memory of its own."""

    def wrapped(name: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        view = value.view(Watched)
        view.name, view.log = name, log
        return view

    return type(s)(*(wrapped(name, value) for name, value in zip(s._fields, s, strict=True)))
