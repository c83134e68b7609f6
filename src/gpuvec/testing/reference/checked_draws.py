"""Random draws in plain Python, with checks of their keys, numbers and bounds."""

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

KEY_RULE = "so results depend on the row, the episode or the seed; pass the key to draws alone"
OWN_KEY = "draws with a key that it created; draw with the key that is its argument"
_word = lru_cache(maxsize=4096)(random.word)  # a phase runs several times, and Philox in plain Python takes 0.2 ms
_uniform, _randint = random.uniform, random.randint


class Draw(NamedTuple):
    """One random number that author code drew."""

    number: int
    file: str
    line: int
    instruction: int  # the index of the bytecode instruction in its function


def _author_place() -> tuple[str, int]:
    """The file and the line of the innermost author code on the stack."""
    frame = _author_frame()
    return frame.f_code.co_filename, frame.f_lineno


def _author_frame() -> FrameType:
    """The frame of the innermost author code on the stack."""
    frame = sys._getframe(1)
    while frame.f_back is not None and in_package(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def in_package(file: str) -> bool:
    """Whether a file belongs to this package, and not to an author.

    Args:
        file: the path of the file.
    """
    return file.startswith(f"{PACKAGE}/") or Path(file) == PACKAGE


class CheckedKey(Key):
    """The key that author code receives, which may draw with it and read its `step`, but no other field."""

    def _refuse(self, name: str) -> AuthoringError:
        return authoring_error_at(*_author_place(), f"reads {name} of the key, {KEY_RULE}")

    def __getattribute__(self, name: str) -> Any:
        """Returns the field `name`, which may only be `step`."""
        if name in ("seed", "seed_high", "row", "episode"):
            raise self._refuse(name)
        return super().__getattribute__(name)

    def __getitem__(self, index: object) -> Any:
        """Raises AuthoringError for any `index`: elements of a key may not be read."""
        raise self._refuse(f"element {index}")

    def __iter__(self) -> Iterator[Any]:
        """Raises AuthoringError: elements of a key may not be read."""
        raise self._refuse("all elements")

    def plain(self) -> Key:
        """The key without checks."""
        return Key._make(tuple.__iter__(self))


def checked_word(key: Key, draw: int) -> int:
    """Draws 32 random bits as `gpuvec.random.word` does, through the module, so that `record_draws` records it.

    Args:
        key: the key that the author's function passes.
        draw: the number of the draw.
    """
    return random.word(key, draw)


def checked_uniform(key: Key, draw: int, low: float, high: float) -> float:
    """Draws as `gpuvec.random.uniform` does, after a check of the bounds.

    Args:
        key: the key that the author's function passes.
        draw: the number of the draw.
        low: the lower bound.
        high: the upper bound.

    Raises:
        AuthoringError: `low` is above `high`.
    """
    if not low <= high:
        problem = f"uniform draws from {low:.7g} to {high:.7g}; the lower bound must not be above the upper one"
        raise authoring_error_at(*_author_place(), problem)
    return _uniform(key, draw, low, high)


def checked_randint(key: Key, draw: int, low: int, high: int) -> int:
    """Draws as `gpuvec.random.randint` does, after a check of the bounds.

    Args:
        key: the key that the author's function passes.
        draw: the number of the draw.
        low: the lower bound, inclusive.
        high: the upper bound, exclusive.

    Raises:
        AuthoringError: there is no integer to draw.
    """
    if not low < high:
        problem = f"randint draws from {low} to below {high}, where there is no integer; the upper bound must be greater"
        raise authoring_error_at(*_author_place(), problem)
    return DataInt(_randint(key, draw, int(low), int(high)))


@contextmanager
def record_draws() -> Iterator[list[Draw]]:
    """Yields a list to which every draw in plain Python is added.

    A draw raises AuthoringError if its key is not a `CheckedKey`, or if its number comes from data or is reserved.
    """
    draws: list[Draw] = []

    def word(key: Key, draw: int) -> int:
        frame = _author_frame()
        place = frame.f_code.co_filename, frame.f_lineno
        if not isinstance(key, CheckedKey):
            raise authoring_error_at(*place, OWN_KEY)
        if isinstance(draw, DataInt):
            problem = f"draw number {int(draw)} depends on data, so it may equal that of another draw"
            remedy = "compute it from literals, the agent's index and the indices of loops, such as 3 * i + 1"
            raise authoring_error_at(*place, f"{problem}; {remedy}")
        if not 0 <= draw < POOL_DRAW:
            problem = f"draw number {int(draw)} is reserved; use numbers from 0 to {POOL_DRAW - 1}"
            raise authoring_error_at(*place, problem)
        draws.append(Draw(int(draw), *place, frame.f_lasti))
        return _word(key.plain(), int(draw))

    with mock.patch.object(random, "word", word):
        yield draws
