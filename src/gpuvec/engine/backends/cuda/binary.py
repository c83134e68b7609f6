"""Machine code as plain records, which a process can load without importing a compiler."""

from __future__ import annotations

import re
from typing import NamedTuple


class GridSize(NamedTuple):
    """The number of blocks of a kernel, as a function of the number of envs.

    An item is what one thread or one block works on: an env, an agent, or a part of an observation.

    Attributes:
        items_per_env: how many items an env has.
        items_per_block: how many items a block has.
    """

    items_per_env: int
    items_per_block: int

    def num_blocks(self, num_envs: int) -> int:
        """The number of blocks for `num_envs` envs."""
        return -(-num_envs * self.items_per_env // self.items_per_block)


class Binary(NamedTuple):
    """A kernel as a cubin, or a function as LTO-IR.

    Attributes:
        code: the machine code.
        name: the symbol.
        log: what the linker reported, if a log was requested.
    """

    code: bytes
    name: str
    log: str = ""

    @property
    def spill_bytes(self) -> int:
        """Bytes of registers that a thread stores to local memory, or loads from there if that is more, as the log says."""
        assert self.log, "linked without a log"
        return max(map(int, re.findall(r"\b(\d+) bytes spill", self.log)))


class Cubin(NamedTuple):
    """A compiled kernel with its launch configuration.

    Attributes:
        code: the machine code.
        name: the symbol.
        threads: per block.
        items_per_env: as in `GridSize`.
        items_per_block: as in `GridSize`.
    """

    code: bytes
    name: str
    threads: int
    items_per_env: int
    items_per_block: int

    def num_blocks(self, num_envs: int) -> int:
        """The number of blocks for `num_envs` envs."""
        return GridSize(self.items_per_env, self.items_per_block).num_blocks(num_envs)
