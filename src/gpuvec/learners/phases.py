"""Reports of what a training waits for before its first iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnPhase = Callable[[str], None]
"""Called with a plain text such as "compiling gpuvec/CartPole-v1" when a wait begins, and with "" when it ends."""


@contextmanager
def phase(on_phase: OnPhase | None, text: str) -> Iterator[None]:
    """Reports `text` to `on_phase`, if there is one, and the end of the wait after the block, also if it raised."""
    if on_phase is None:
        yield
        return
    on_phase(text)
    try:
        yield
    finally:
        on_phase("")
