"""Calls the author's functions as plain Python, with errors that name the author's line, and the place in the run.

The CPU time of a call is limited.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.errors import AuthoringError
from gpuvec.testing.reference.checked_functions import in_package


def add_place(error: AuthoringError, place: str) -> None:
    """Appends a place to the message of an error. Places are added from the innermost to the outermost.

    Args:
        error: the error, whose message changes.
        place: the place, such as "in step 41 of environment 3".
    """
    message, places = getattr(error, "message_and_places", (str(error), ()))
    places = (*places, place)
    error.message_and_places = message, places  # type: ignore[attr-defined]  # an attribute of this module alone
    error.args = (f"{message} This occurs {' '.join(places)}.",)


@contextmanager
def fault_place(place: str) -> Iterator[None]:
    """Appends a place to the message of an AuthoringError that the block raises.

    Args:
        place: the place, such as "in step 41 of environment 3".
    """
    try:
        yield
    except AuthoringError as error:
        add_place(error, place)
        raise


POLL_SECONDS = 0.25


class CallTimeout(BaseException):
    """A call takes longer than `limit`; raised within the call."""

    limit = 0.0  # CPU seconds


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


class NotPlainError(AuthoringError):
    """A function does not run as plain Python."""

    place: tuple[str, int]  # the file and the line


class _IntegerDivision:
    """Receives NumPy's reports of divisions by zero. Those of integers raise an error, those of floats follow IEEE 754."""

    def write(self, message: str) -> None:
        if "floor_divide" in message or "remainder" in message:
            raise ZeroDivisionError("integer division or modulo by zero")


REMEDIES = {  # what an author can do about an error, by a part of its message
    "division": "test the divisor first",
    "modulo": "test the divisor first",
    "math domain": "clip the argument of a root, a logarithm or an arc function to its domain",
    "a shift by": "clip the count, or test it first",
}
_NUMPY_ERRORS = {"over": "ignore", "under": "ignore", "invalid": "ignore", "divide": "log", "call": _IntegerDivision()}


def call_checked(function: Callable[..., Any], *arguments: object) -> Any:
    """Calls an author's function and returns its result.

    Args:
        function: an author's function, or its copy from `CheckedFunctions`.
        arguments: checked values.

    Raises:
        NotPlainError: the function raised an error, or did not return within the limit of `limit_calls`; the message names the
            line.
    """
    try:
        with np.errstate(**_NUMPY_ERRORS):  # type: ignore[arg-type]  # a dictionary with values of several types
            return function(*arguments)
    except AuthoringError as error:
        _add_elements(error, function, arguments)
        raise
    except CallTimeout as error:
        problem = (
            f"is where `{function.__name__}` still runs after {error.limit:g} s of CPU time; is it a loop that does not end? A "
            "loop needs a bound that it reaches in any state. If the function is only slow, raise time_limit"
        )
        raise _fault_in(function, arguments, error, problem) from None
    except Exception as error:
        remedy = next((f"{text}; " for part, text in REMEDIES.items() if part in str(error)), "")
        problem = (
            f"does not run as plain Python, {type(error).__name__}: {error}; {remedy}it must run in any state that it can reach"
        )
        raise _fault_in(function, arguments, error, problem) from error


def _add_elements(error: AuthoringError, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    """Appends the indices with which a function was called to the message, such as "for i = 2" or "for cell = (0, 1)"."""
    indices = list(itertools.takewhile(lambda argument: isinstance(argument, int) or type(argument) is tuple, arguments))
    if indices:
        names = inspect.unwrap(function).__code__.co_varnames
        add_place(error, "for " + ", ".join(f"{name} = {index}" for name, index in zip(names, indices, strict=False)))


def _fault_in(function: Callable[..., Any], arguments: tuple[object, ...], error: BaseException, problem: str) -> NotPlainError:
    """An error that names the innermost line of author code in the traceback of `error`."""
    code = function.__code__
    place, trace = (code.co_filename, code.co_firstlineno), error.__traceback__
    while trace is not None:
        if not in_package(trace.tb_frame.f_code.co_filename):
            place = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    fault = NotPlainError(*authoring_error_at(*place, problem).args)
    fault.place = place
    _add_elements(fault, function, arguments)
    return fault
