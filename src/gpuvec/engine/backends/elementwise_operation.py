"""Operations that apply a function to each row of a batch, such as drawing actions or accumulating rewards.

On a GPU each row has a thread, on a CPU a loop visits all rows. The function takes the batch, a NamedTuple of addresses and
numbers, and the row, and accesses memory with the operations of `memory_ops.MemoryOps`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.engine.layout.buffers import named_tuple


class Elementwise(NamedTuple):
    """A function that is applied to each row. Equal values are compiled once in a process.

    Attributes:
        name: a name for messages.
        members: names of the members of the batch, addresses and numbers of 64 bits.
        make_function: `make_function(memory_ops, *settings)` returns `function(b, row)`.
        settings: what the function is compiled for.
        threads: per block.
    """

    name: str
    members: tuple[str, ...]
    make_function: Callable[..., DeviceFunction]
    settings: tuple[Any, ...] = ()
    threads: int = 256

    @property
    def batch(self) -> Any:
        """The NamedTuple class of the batch, whose last member `n` is the number of rows."""
        return named_tuple("Batch", (*self.members, "n"))
