"""A pause of Python's cyclic garbage collector during compilation and capture."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables the garbage collector in its block, and restores its state afterwards.

    A compiler allocates many objects that stay alive, and each allocation brings the next collection closer. Collections took a
    fifth of the time of the first kernels, more with large libraries imported, and freed almost nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
