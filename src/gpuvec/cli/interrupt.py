"""Ctrl-C and SIGTERM, remembered until the running iteration has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted() -> Iterator[Callable[[], int]]:
    """Within the block the first signal is only remembered; a second one ends the process, as without this.

    Yields:
        A function that gives the signal's number, 0 as long as there was none.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield lambda: 0
        return
    seen = 0
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: seen
    finally:
        restore()
