"""A pause of Python's cyclic garbage collector during compilation and capture."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MAX_OBJECTS = 500_000  # of the blocks between two full collections; a compilation leaves 30,000 to 80,000 behind, some MiB

_num_collections = 0  # full collections of this process up to the last pause
_num_objects = 0  # that joined the oldest generation since the last full collection


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables the garbage collector in its block, and restores its state afterwards.

    A compiler allocates many objects that stay alive, and each allocation brings the next collection closer. Collections took a
    fifth of the time of the first kernels, more with large libraries imported, and freed almost nothing. The collection that
    would follow the block took a further seventh, so the objects of the block join the oldest generation instead, which is
    collected if many objects joined it since the last full collection.
    """
    global _num_collections, _num_objects
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            num_collections, num_new = gc.get_stats()[-1]["collections"], gc.get_count()[0]
            _num_objects = _num_objects + num_new if num_collections == _num_collections else num_new
            _num_collections = num_collections
            if _num_objects > MAX_OBJECTS:
                gc.collect()
            elif gc.get_freeze_count() == 0:  # `unfreeze` would also return objects that the user has frozen.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
