"""Machine code as plain records, which a process can load without importing a compiler."""

from __future__ import annotations

import re
from typing import NamedTuple


class GridSize(NamedTuple):
    """How many blocks a kernel has.

    Attributes:
        parts: units of work of one env.
        share: units of work of one block.
    """

    parts: int
    share: int

    def __call__(self, num_envs: int) -> int:
        """The number of blocks for `num_envs` envs."""
        return -(-num_envs * self.parts // self.share)


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
        parts: units of work of one env, as in `GridSize`.
        share: units of work of one block, as in `GridSize`.
    """

    code: bytes
    name: str
    threads: int
    parts: int
    share: int

    def blocks(self, num_envs: int) -> int:
        """The number of blocks for `num_envs` envs."""
        return GridSize(self.parts, self.share)(num_envs)
