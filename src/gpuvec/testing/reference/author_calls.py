"""Calls the author's functions as plain Python, with errors that name the author's line."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.errors import AuthoringError
from gpuvec.testing.reference.checked_draws import in_package
from gpuvec.testing.reference.fault_place import add_place
from gpuvec.testing.reference.time_limit import CallTimeout


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
        raise _fault_in(function, arguments, error, error.message(function.__name__)) from None
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
