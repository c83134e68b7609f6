"""A pause of Python's cyclic garbage collector during compilation and capture."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MAX_PAUSES = 16  # between two full collections; what a compilation leaves behind takes some MiB

_num_collections = 0  # full collections of this process up to the last pause
_num_pauses = 0  # since the last full collection


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables the garbage collector in its block, and restores its state afterwards.

    A compiler allocates many objects that stay alive, and each allocation brings the next collection closer. Collections took a
    fifth of the time of the first kernels, more with large libraries imported, and freed almost nothing. The collection that
    would follow the block took a further seventh, so the objects of the block join the oldest generation instead.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _promote_objects()
            gc.enable()


def _promote_objects() -> None:
    """Moves all objects to the oldest generation, and collects it if there was no full collection in the last pauses."""
    global _num_collections, _num_pauses
    num_collections = gc.get_stats()[-1]["collections"]
    _num_pauses = _num_pauses + 1 if num_collections == _num_collections else 1
    _num_collections = num_collections
    if _num_pauses > MAX_PAUSES:
        gc.collect()
    elif gc.get_freeze_count() == 0:  # `unfreeze` would also return objects that the user has frozen.
        gc.freeze()
        gc.unfreeze()
