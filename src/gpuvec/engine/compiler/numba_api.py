"""The modules of Numba, or of numba-cuda, that intrinsics are declared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, NamedTuple, cast

from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaModule, NumbaType, Signature, TypingContext

# The number that LLVM gives a GPU's global address space. A CPU has the generic address space alone, number 0.
GLOBAL_MEMORY = 1
DECLARED_INTRINSICS: set[DeviceFunction] = set()  # Numba never frees an intrinsic.


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

    def intrinsic(self, name: str, signature: Callable[..., Signature], codegen: Callable[..., Any]) -> DeviceFunction:
        """Declares an intrinsic.

        Args:
            name: for messages.
            signature: takes a typing context and the Numba types of the arguments; returns the signature of a call, None if
                there is none.
            codegen: `codegen(numba, context, builder, sig, args)` emits the instructions of a call and returns its result:
                `numba` is this object, `context` a target context, `args` are LLVM values.
        """

        @wraps(signature)  # Numba reads the names of the parameters.
        def definition(typingctx: TypingContext, *argument_types: NumbaType) -> Intrinsic | None:
            call = signature(typingctx, *argument_types)
            return None if call is None else (call, partial(codegen, self))

        definition.__name__ = name
        intrinsic: DeviceFunction = self.extending.intrinsic(definition)
        DECLARED_INTRINSICS.add(intrinsic)
        return intrinsic


class Operations(dict[str, tuple[Callable[..., Signature], Callable[..., Any]]]):
    """Intrinsics by name, each with its signature and its code generator as for `NumbaApi.intrinsic`."""

    def add(self, signature: Callable[..., Signature]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Adds the decorated code generator under its name; `signature` takes the module of types in place of a context."""
        return partial(self._add, signature)

    def _add(self, signature: Callable[..., Signature], codegen: Callable[..., Any]) -> Callable[..., Any]:
        self[codegen.__name__] = signature, codegen
        return codegen

    def declare(self, numba: NumbaApi) -> dict[str, DeviceFunction]:
        """Declares all of them to `numba`, Numba or numba-cuda, and returns them by name."""
        declared = {}
        for name, (signature, codegen) in self.items():
            with_context = wraps(signature)(lambda _, *types, signature=signature: signature(numba.types, *types))
            declared[name] = numba.intrinsic(name, with_context, codegen)
        return declared


@cache
def cpu_numba() -> NumbaApi:
    """Returns Numba's modules for the CPU."""
    from numba import extending, types
    from numba.core import cgutils, imputils
    from numba.core.typing import templates

    return NumbaApi(extending, types, cgutils, imputils, templates, 0)
