"""Defers Ctrl-C and SIGTERM until the running iteration has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gpuvec.errors import LostProcessError


@contextmanager
def deferred_signals() -> Iterator[Callable[[], int]]:
    """Stores the number of the first SIGINT or SIGTERM in the block instead of raising KeyboardInterrupt or exiting.

    A second signal has its usual effect. If the block ends because another process of the training ended, a first signal has
    no effect afterwards: torchrun sends SIGTERM to a process that is about to say so, and to end. Outside the main thread,
    which alone receives signals, the block has no effect.

    Yields:
        A function that returns the number of the signal, 0 if there was none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    received_signal = 0
    previous_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def store(number: int, frame: FrameType | None) -> None:
        nonlocal received_signal
        received_signal = number
        restore()

    def restore() -> None:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)

    for number in previous_handlers:
        signal.signal(number, store)
    try:
        yield lambda: received_signal
    except LostProcessError:
        raise
    except BaseException:
        restore()
        raise
    else:
        restore()
