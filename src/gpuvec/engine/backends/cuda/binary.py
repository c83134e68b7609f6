"""A kernel as machine code, apart from the compilers, so that whoever only loads one imports none of them."""

from __future__ import annotations

import re
from typing import NamedTuple


class Loadable(NamedTuple):
    """The machine code of a kernel, or the LTO-IR of functions that one is linked with, as it is stored on disk."""

    code: bytes
    name: str


class Binary(NamedTuple):
    """A kernel as machine code: the cubin and the kernel's name in it."""

    cubin: bytes
    name: str
    log: str  # what the linker said of it, if it was asked

    @property
    def spilled(self) -> int:
        """Bytes of registers that a thread puts by in memory, or takes from there if that is more, as its log says."""
        assert self.log, "it was linked without a log"
        return max(map(int, re.findall(r"\b(\d+) bytes spill", self.log)))
