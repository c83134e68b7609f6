"""Finds the line of author code that first computes NaN or infinity."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from gpuvec.random import Key
from gpuvec.testing.reference.checked_draws import in_package

Trace = Any  # the type of a trace function, which returns itself


class NonFiniteTrace:
    """A trace function that compares local variables and results of author code with NaN or infinity.

    Args:
        value: NaN, or an infinity.
    """

    def __init__(self, value: float) -> None:
        self._is_nan = math.isnan(value)
        self.place: tuple[str, int] | None = None  # the file and the line; None if there was no such value
        self._frames: dict[FrameType, tuple[int, frozenset[str]]] = {}  # {frame: (last line, names that had such a value)}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Trace:
        """Inspects a frame, as `sys.settrace` specifies it."""
        file = frame.f_code.co_filename
        if self.place is not None or in_package(file) or file.startswith("<"):  # NamedTuple classes have methods in "<string>"
            return None
        names = frozenset(
            name for name, value in frame.f_locals.items() if not isinstance(value, tuple) and self._matches(value)
        )
        if event == "call":
            self._frames[frame] = frame.f_lineno, names
            return self
        line, before = self._frames.get(frame, (frame.f_lineno, frozenset()))
        if names - before:
            self.place = file, line
        elif event == "return" and not before and self._matches(argument):
            self.place = file, frame.f_lineno
        self._frames[frame] = frame.f_lineno, before
        return self

    def _matches(self, value: Any) -> bool:
        if isinstance(value, tuple) and not isinstance(value, Key):
            return any(map(self._matches, value))
        if not isinstance(value, float | np.floating):
            return False
        return bool(np.isnan(value) if self._is_nan else np.isinf(value))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Traces all code of this thread in the block, instead of with the trace function of a debugger, if there is one."""
        previous = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(previous)
