"""Room for the frames of deep calls.

CPython keeps frames in pieces of 16 KB. A call that no longer fits gets a new piece from the operating system, which goes back
when the call returns: a loop of short calls that happens to stand at the end of a piece asks the system every time, and takes
5 us instead of 0.1 for each. Compilers recur so deep that some of their loops always do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
WORDS = 1 << 17  # of a frame; with what else belongs to it just too many for 1 MB, so a piece has 2 MB, of which half is left


def with_large_frame(function: Callable[P, R]) -> Callable[P, R]:
    """`function` such that the calls below it, to a depth of a thousand or so, have their frames in one piece."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=WORDS)  # nothing of it is written to, so it takes no memory
    update_wrapper(call, function)
    return call
