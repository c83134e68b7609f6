"""Python's search for garbage, which must not come, or is better put off, while something else is made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """No search within. A compiler makes many objects that stay, which is when Python looks for those that do not: a fifth of
    the time that the first kernels take, more beside large libraries, and next to nothing is found.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
