"""Limits the CPU time of a call of an author's function in plain Python."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

POLL_SECONDS = 0.25


class CallTimeout(BaseException):
    """A call takes longer than `limit`; raised within the call."""

    limit = 0.0  # CPU seconds

    def message(self, name: str) -> str:
        """The message for the author, which continues a sentence that names the line.

        Args:
            name: the name of the function.
        """
        return (
            f"is where `{name}` still runs after {self.limit:g} s of CPU time; is it a loop that does not end? A loop needs "
            "a bound that it reaches in any state. If the function is only slow, raise time_limit"
        )


@contextmanager
def limit_calls(function: Callable[..., Any], limit: float) -> Iterator[None]:
    """Raises `CallTimeout` within a call of a function in this thread that takes too long.

    Another thread samples the stack of this thread, so that calls do not become slower. Only the CPU time of this thread
    counts, not that of other threads or processes.

    Args:
        function: the function whose calls are limited.
        limit: the CPU seconds that a call may take.
    """
    thread, ended = threading.get_ident(), threading.Event()
    clock = time.pthread_getcpuclockid(thread)
    error = type("CallTimeout", (CallTimeout,), {"limit": limit})

    def sample_stack() -> None:
        call: FrameType | None = None
        start_time = 0.0
        while not ended.wait(POLL_SECONDS):
            now, frame = time.clock_gettime(clock), sys._current_frames().get(thread)
            while frame is not None and frame.f_code is not function.__code__:
                frame = frame.f_back
            if frame is not call:
                call, start_time = frame, now
            elif call is not None and now - start_time > limit:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
                call = None

    watcher = threading.Thread(target=sample_stack, name="gpuvec time limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
