"""Random draws in plain Python: with which key and number, within which bounds, and which of them collide."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

from gpuvec import random
from gpuvec.engine.compiler.diagnostics import PACKAGE, authoring_error_at
from gpuvec.engine.layout.rng_streams import POOL_DRAW
from gpuvec.errors import AuthoringError
from gpuvec.random import Key
from gpuvec.testing.reference.checked_values import DataInt

_word = lru_cache(maxsize=4096)(random.word)  # a phase is run several times, and plain Philox takes a fifth of a millisecond
_uniform, _randint = random.uniform, random.randint


class Draw(NamedTuple):
    """One random number that author code drew."""

    number: int
    file: str
    line: int
    instruction: int  # within its function


def author_place() -> tuple[str, int]:
    """(file, line) of the innermost author code that is running."""
    frame = author_frame()
    return frame.f_code.co_filename, frame.f_lineno


def author_frame() -> FrameType:
    """The innermost author code that is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and in_package(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def in_package(file: str) -> bool:
    """Whether a file is one of this package's, as opposed to an author's."""
    return file.startswith(f"{PACKAGE}/") or Path(file) == PACKAGE


class CheckedKey(Key):
    """A key as author code gets it: it draws with it, and reads no more of it than the step."""

    def _refuse(self, name: str) -> AuthoringError:
        what = f"reads {name} of the key, so results depend on which row, episode or seed it is; hand the key to draws alone"
        return authoring_error_at(*author_place(), what)

    def __getattribute__(self, name: str) -> Any:
        """A field, of which author code may read `step` alone."""
        if name in ("seed", "seed_high", "row", "episode"):
            raise self._refuse(name)
        return super().__getattribute__(name)

    def __getitem__(self, index: Any) -> Any:
        """Refused: see `__getattribute__`."""
        raise self._refuse(f"element {index}")

    def __iter__(self) -> Iterator[Any]:
        """Refused: see `__getattribute__`."""
        raise self._refuse("all elements")

    def plain(self) -> Key:
        """The key that can be read."""
        return Key._make(tuple.__iter__(self))


def checked_word(key: Key, draw: int) -> int:
    """`gpuvec.random.word`, if the key and the number are allowed."""
    return random.word(key, draw)


def checked_uniform(key: Key, draw: int, low: float, high: float) -> float:
    """`gpuvec.random.uniform`, if the bounds are in order."""
    if not low <= high:
        what = f"uniform draws from {low:.7g} to {high:.7g}; the lower bound must not be above the upper one"
        raise authoring_error_at(*author_place(), what)
    return _uniform(key, draw, low, high)


def checked_randint(key: Key, draw: int, low: int, high: int) -> int:
    """`gpuvec.random.randint`, if there is an integer to draw."""
    if not low < high:
        what = f"randint draws from {low} to below {high}, where there is no integer; the upper bound must be greater"
        raise authoring_error_at(*author_place(), what)
    return DataInt(_randint(key, draw, int(low), int(high)))


@contextmanager
def recorded_draws() -> Iterator[list[Draw]]:
    """A list to which plain Python adds every draw.

    Raises:
        AuthoringError: by a draw with another key than the one that was handed over, or with a number that is taken from
            data or that is not the author's to use.
    """
    draws: list[Draw] = []

    def word(key: Key, draw: int) -> int:
        frame = author_frame()
        place = frame.f_code.co_filename, frame.f_lineno
        if not isinstance(key, CheckedKey):
            raise authoring_error_at(*place, "draws with a key of its own; draw with the key that it is given")
        if isinstance(draw, DataInt):
            what = f"draw number {int(draw)} is taken from data, so it may be that of another draw; make it of literals, the"
            raise authoring_error_at(*place, f"{what} agent's index and the indices of loops, such as 3 * i + 1")
        if not 0 <= draw < POOL_DRAW:
            what = f"draw number {int(draw)} is not the author's to use; those from 0 to {POOL_DRAW - 1} are"
            raise authoring_error_at(*place, what)
        draws.append(Draw(int(draw), *place, frame.f_lasti))
        return _word(key.plain(), int(draw))

    with mock.patch.object(random, "word", word):
        yield draws
