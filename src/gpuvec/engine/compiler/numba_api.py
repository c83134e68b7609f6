"""The modules of Numba, or of numba-cuda, that intrinsics are written against."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, cast

from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaModule

GLOBAL_MEMORY = 1  # LLVM's number of a GPU's global address space; a CPU has the generic one, 0


class NumbaApi(NamedTuple):
    """Modules of the same interface, which Numba and numba-cuda each have of their own.

    Attributes:
        extending: declares intrinsics and types.
        types: Numba's types.
        cgutils: functions that emit LLVM instructions.
        imputils: the protocol of iterators.
        address_space: LLVM's number of the address space of every buffer, 0 or `GLOBAL_MEMORY`.
    """

    extending: NumbaModule
    types: NumbaModule
    cgutils: NumbaModule
    imputils: NumbaModule
    address_space: int

    @property
    def is_gpu(self) -> bool:
        """Whether buffers are in a GPU's global memory."""
        return self.address_space == GLOBAL_MEMORY

    def intrinsic(self, function: Callable[..., Intrinsic]) -> DeviceFunction:
        """Declares an intrinsic.

        Args:
            function: takes a typing context and the Numba types of the arguments; returns a signature and a code generator.
        """
        return cast(DeviceFunction, self.extending.intrinsic(function))


@cache
def cpu_numba() -> NumbaApi:
    """Numba's modules for the CPU."""
    from numba import extending, types
    from numba.core import cgutils, imputils

    return NumbaApi(extending, types, cgutils, imputils, 0)
