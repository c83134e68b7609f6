"""One contiguous piece of memory for the stack frames of deep calls.

CPython stores frames in chunks of 16 KB. A call whose frame does not fit into the current chunk allocates a new one from the
operating system, and frees it when the call returns. So a loop of short calls whose frames begin at the end of a chunk
allocates in each iteration, and a call takes 5 us instead of 0.1. Compilers recurse so deep that some of their loops always run
there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
# The size of the frame in words. The frame is slightly larger than 1 MB, so CPython allocates a chunk of 2 MB, of which half
# remains for the calls below.
FRAME_WORDS = 1 << 17


def with_large_frame(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps `function` such that the frames of the calls below it, about a thousand levels deep, are in one chunk of memory."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    # The operating system provides pages when they are first written, so the unused part of the frame takes no memory.
    call.__code__ = call.__code__.replace(co_stacksize=FRAME_WORDS)
    update_wrapper(call, function)
    return call
