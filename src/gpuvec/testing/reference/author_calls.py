"""Calls the author's functions as plain Python, with errors that name the author's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.errors import AuthoringError
from gpuvec.testing.reference.checked_draws import in_package
from gpuvec.testing.reference.time_limit import CallTimeout


class NotPlainError(AuthoringError):
    """A function does not run as plain Python."""


class _IntegerDivision:
    """Receives NumPy's reports of divisions by zero. Those of integers raise an error, those of floats follow IEEE 754."""

    def write(self, message: str) -> None:
        if "floor_divide" in message or "remainder" in message:
            raise ZeroDivisionError("integer division or modulo by zero")


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
    except AuthoringError:
        raise
    except CallTimeout as error:
        raise NotPlainError(*_fault_in(function, error, error.message(function.__name__)).args) from None
    except Exception as error:
        problem = f"does not run as plain Python, {type(error).__name__}: {error}; it must run in any state that it can reach"
        raise NotPlainError(*_fault_in(function, error, problem).args) from error


def _fault_in(function: Callable[..., Any], error: BaseException, problem: str) -> AuthoringError:
    """An error that names the innermost line of author code in the traceback of `error`."""
    code = function.__code__
    place, trace = (code.co_filename, code.co_firstlineno), error.__traceback__
    while trace is not None:
        if not in_package(trace.tb_frame.f_code.co_filename):
            place = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return authoring_error_at(*place, problem)
