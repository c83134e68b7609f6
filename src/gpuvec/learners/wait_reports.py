"""Reports of the waits of a training before its first iteration, such as for the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnPhase = Callable[[str], None]
"""Called with a plain text such as "compiling gpuvec/CartPole-v1" when a wait begins, and with "" when it ends."""


@contextmanager
def phase(on_phase: OnPhase | None, text: str) -> Iterator[None]:
    """Calls `on_phase`, if there is one, with `text` before the block, and with "" after it, also if it raises."""
    if on_phase is None:
        yield
        return
    on_phase(text)
    try:
        yield
    finally:
        on_phase("")
