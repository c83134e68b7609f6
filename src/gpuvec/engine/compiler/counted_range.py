"""`range` in compiled code as a plain counting loop.

Numba's `range` stores the number of remaining iterations in addition to the value. A GPU's compiler turns that into 64-bit
selects, and does not recognise that a value that counts from 0 is never negative, so it tests the sign of each index
(design/0024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, NumbaType, Signature, TargetContext, TypingContext

# The name by which compiled functions refer to `counted_range`. Numba does not let the name of a builtin mean anything else.
RANGE_NAME = "<range>"


def counted_range(*bounds: int) -> range:
    """Returns `range(*bounds)`. This function replaces `range` in compiled functions."""
    return range(*bounds)


# Numba's error messages show this name.
counted_range.__name__ = "range"


@cache
def register_counted_range(numba: NumbaApi) -> DeviceFunction:
    """Returns `counted_range`; the first call declares it to `numba`, Numba or numba-cuda.

    Ranges with a step of one have their own type and loop. All others remain Numba's ranges.
    """
    struct_proxy = numba.cgutils.create_struct_proxy

    class CountedRange(numba.types.RangeType):  # type: ignore[misc, name-defined]  # Numba has no annotations
        def __init__(self, dtype: NumbaType) -> None:
            super().__init__(dtype)
            self.name, self._iterator_type = f"counted_range_{dtype}", CountedRangeIterator(dtype)

    class CountedRangeIterator(numba.types.RangeIteratorType):  # type: ignore[misc, name-defined]  # Numba has no annotations
        def __init__(self, dtype: NumbaType) -> None:
            super().__init__(dtype)
            self.name = f"counted_range_iterator_{dtype}"

    struct = numba.extending.models.StructModel
    numba.extending.register_model(CountedRange)(
        lambda manager, kind: struct(manager, kind, [(name, kind.dtype) for name in ("start", "stop", "step")])
    )
    numba.extending.register_model(CountedRangeIterator)(
        lambda manager, kind: struct(
            manager, kind, [("value", numba.types.EphemeralPointer(kind.yield_type)), ("stop", kind.yield_type)]
        )
    )

    @numba.extending.type_callable(counted_range)
    def typer_for(context: TypingContext) -> Callable[..., NumbaType | None]:
        def typer(first: NumbaType, second: NumbaType | None = None, step: NumbaType | None = None) -> NumbaType | None:
            bounds = tuple(bound for bound in (first, second, step) if bound is not None)
            # Numba's own range rounds floats, which Python refuses.
            if not all(isinstance(bound, numba.types.Integer) for bound in bounds):
                return None
            numba_range = context.resolve_function_type(context.resolve_value_type(range), bounds, {}).return_type
            return CountedRange(numba_range.dtype) if step is None else numba_range

        return typer

    @numba.extending.lower_builtin(counted_range, numba.types.VarArg(numba.types.Any))
    def constructor(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        dtype = sig.return_type.dtype
        bounds = [context.cast(builder, value, value_type, dtype) for value, value_type in zip(args, sig.args, strict=True)]
        counted = struct_proxy(sig.return_type)(context, builder)
        counted.start = bounds[0] if len(bounds) > 1 else context.get_constant(dtype, 0)
        counted.stop = bounds[1] if len(bounds) > 1 else bounds[0]
        counted.step = bounds[2] if len(bounds) > 2 else context.get_constant(dtype, 1)
        return counted._getvalue()  # as in the examples of Numba's documentation for extensions

    @numba.extending.lower_builtin("getiter", CountedRange)
    def getiter(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        bounds = struct_proxy(sig.args[0])(context, builder, args[0])
        iterator = struct_proxy(sig.return_type)(context, builder)
        iterator.value, iterator.stop = numba.cgutils.alloca_once_value(builder, bounds.start), bounds.stop
        return iterator._getvalue()  # as above

    @numba.extending.lower_builtin("iternext", CountedRangeIterator)
    @numba.imputils.iternext_impl(numba.imputils.RefType.UNTRACKED)
    def iternext(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value], result: Any) -> None:
        iterator = struct_proxy(sig.args[0])(context, builder, args[0])
        dtype, value = sig.args[0].yield_type, builder.load(iterator.value)
        result.set_valid(_is_less(builder, dtype, value, iterator.stop))
        result.yield_(value)
        # The sum can overflow only after the last iteration, where it is not read.
        next_value = builder.add(value, value.type(1), flags=["nsw" if dtype.signed else "nuw"])
        builder.store(next_value, iterator.value)

    @numba.extending.lower_builtin(len, CountedRange)
    def length(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        bounds = struct_proxy(sig.args[0])(context, builder, args[0])
        is_nonempty = _is_less(builder, sig.args[0].dtype, bounds.start, bounds.stop)
        count = builder.select(is_nonempty, builder.sub(bounds.stop, bounds.start), bounds.stop.type(0))
        return context.cast(builder, count, sig.args[0].dtype, sig.return_type)

    return counted_range


def _is_less(builder: ir.IRBuilder, dtype: NumbaType, a: ir.Value, b: ir.Value) -> ir.Value:
    return (builder.icmp_signed if dtype.signed else builder.icmp_unsigned)("<", a, b)
