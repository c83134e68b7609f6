"""The calling convention of the device functions that `inline_function` makes, for numba-cuda.

numba-cuda passes each member of a tuple as an argument of its own. Batch, work, state and parameters have up to sixty members.
Taking them apart before each call and putting them together in each function was half of the LLVM IR of an environment. LLVM
removed all of it, as these functions are inlined. Here a tuple is one argument.

`numba_cuda`, which alone imports numba-cuda, applies this to its classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple

from llvmlite import ir

from gpuvec.engine.compiler.functions import is_inline
from gpuvec.engine.compiler.types import NumbaModule, NumbaType

NUM_SIGNATURES = 1024  # some hundred for an environment


class WholeValue(NamedTuple):
    """Passes one value as one argument, with the methods of Numba's packers.

    Attributes:
        argument_types: the LLVM type of the value, in a tuple.
    """

    argument_types: tuple[ir.Type, ...]

    def as_arguments(self, builder: ir.IRBuilder, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Returns the arguments of a call with these `values`; the `builder` of LLVM IR adds nothing."""
        return values

    def from_arguments(self, builder: ir.IRBuilder, arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Returns the values of the `arguments` of a function; the `builder` of LLVM IR adds nothing."""
        return arguments


class ArgumentPacker:
    """Passes the values of a call, each by a packer of its own.

    Args:
        packers: one for each value.
    """

    def __init__(self, packers: Sequence[Any]) -> None:
        self._packers = packers
        self.argument_types = tuple(kind for packer in packers for kind in packer.argument_types)

    def as_arguments(self, builder: ir.IRBuilder, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the arguments of a call with these `values`, which `builder` takes apart."""
        pairs = zip(self._packers, values, strict=True)
        return [argument for packer, value in pairs for argument in packer.as_arguments(builder, [value])]

    def from_arguments(self, builder: ir.IRBuilder, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Returns the values of the `arguments` of a function, which `builder` puts together."""
        values: list[ir.Value] = []
        start = 0
        for packer in self._packers:
            end = start + len(packer.argument_types)
            values += packer.from_arguments(builder, arguments[start:end])
            start = end
        return values


class TypeNumbers(dict[NumbaType, int]):
    """Numbers types in the order in which they are looked up."""

    def __missing__(self, kind: NumbaType) -> int:
        self[kind] = len(self)
        return self[kind]


def pass_tuples_whole(
    lowering_class: type, callconv: NumbaModule, types: NumbaModule, packer_class: Callable[..., Any]
) -> None:
    """Compiles inlined functions with the calling convention of this module; all other functions keep theirs.

    Args:
        lowering_class: numba-cuda's pass that translates a function with types to LLVM IR.
        callconv: numba-cuda's module of calling conventions.
        types: numba-cuda's module of types.
        packer_class: numba-cuda's class that passes each member of a tuple as an argument.
    """

    def is_whole(kind: NumbaType) -> bool:
        """Whether a tuple is passed whole: LLVM has other types for a flag in a register and for one in memory."""
        if isinstance(kind, types.BaseTuple):
            return all(map(is_whole, kind.types)) and len(kind) > 0
        return not isinstance(kind, types.Boolean)

    numbers = TypeNumbers()

    @lru_cache(NUM_SIGNATURES)
    def make_packer(manager: Any, kinds: tuple[NumbaType, ...]) -> ArgumentPacker:
        return ArgumentPacker(
            [
                WholeValue((manager[kind].get_value_type(),))
                if isinstance(kind, types.BaseTuple) and is_whole(kind)
                else packer_class(manager, [kind])
                for kind in kinds
            ]
        )

    class WholeTupleConvention(callconv.CUDACallConv):  # type: ignore[misc]  # numba-cuda has no annotations
        """numba-cuda's convention for device functions, except for tuples and names."""

        needs_env = False  # an object for Python's exceptions, which a GPU does not raise

        def _get_arg_packer(self, argument_types: Sequence[NumbaType]) -> ArgumentPacker:
            return make_packer(self.context.data_model_manager, tuple(argument_types))

        def decorate_function(self, function: ir.Function, *args: object, **options: object) -> None:
            """Leaves the arguments without names."""

        def mangler(self, name: str, argument_types: Sequence[NumbaType], *, abi_tags: object = (), uid: int = 0) -> str:
            """Returns a symbol that is unique in this process, by the numbers of function and types."""
            codes = "_".join(str(numbers[kind]) for kind in argument_types)
            return f"{callconv.itanium_mangler.escape_string(name)}_{uid}_{codes}"

    run_pass = lowering_class.run_pass  # type: ignore[attr-defined]  # numba-cuda has no annotations

    @wraps(run_pass)
    def run_with_convention(self: Any, state: Any) -> bool:
        if is_inline(state.func_id.func):
            state.call_conv = WholeTupleConvention(state.targetctx)
        result: bool = run_pass(self, state)
        return result

    lowering_class.run_pass = run_with_convention  # type: ignore[attr-defined]  # numba-cuda has no annotations
