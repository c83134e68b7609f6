"""The modules of Numba, or of numba-cuda, that intrinsics are declared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, cast

from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaModule

# The number that LLVM gives a GPU's global address space. A CPU has the generic address space alone, number 0.
GLOBAL_MEMORY = 1


class NumbaApi(NamedTuple):
    """Modules with the same interface, of which Numba and numba-cuda each have their own.

    Attributes:
        extending: declares intrinsics and types.
        types: Numba's types.
        cgutils: functions that emit LLVM instructions.
        imputils: the protocol of iterators.
        templates: classes that infer types.
        address_space: the number that LLVM gives the address space of all buffers, 0 or `GLOBAL_MEMORY`.
    """

    extending: NumbaModule
    types: NumbaModule
    cgutils: NumbaModule
    imputils: NumbaModule
    templates: NumbaModule
    address_space: int

    @property
    def is_gpu(self) -> bool:
        """Whether buffers are in a GPU's global memory."""
        return self.address_space == GLOBAL_MEMORY

    @property
    def data_models(self) -> NumbaModule:
        """The data models of types, which numba-cuda has in another module than Numba."""
        return cast(NumbaModule, getattr(self.extending, "core_models", self.extending.models))

    def intrinsic(self, function: Callable[..., Intrinsic]) -> DeviceFunction:
        """Declares an intrinsic.

        Args:
            function: takes a typing context and the Numba types of the arguments; returns a signature and a code generator.
        """
        return cast(DeviceFunction, self.extending.intrinsic(function))


@cache
def cpu_numba() -> NumbaApi:
    """Returns Numba's modules for the CPU."""
    from numba import extending, types
    from numba.core import cgutils, imputils
    from numba.core.typing import templates

    return NumbaApi(extending, types, cgutils, imputils, templates, 0)
