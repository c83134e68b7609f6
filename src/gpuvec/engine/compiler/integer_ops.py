"""Integer arithmetic in kernel code that tells the compiler the sign and the width of its operands."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT64, to_int32
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def make_assume_nonnegative(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.assume_nonnegative` to `numba`."""

    @numba.intrinsic
    def assume_nonnegative(typingctx: TypingContext, number: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            return builder.zext(to_int32(builder, args[0]), INT64)

        return numba.types.int64(number), codegen

    return assume_nonnegative


def make_add_nonnegative(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.add_nonnegative` to `numba`."""

    @numba.intrinsic
    def add_nonnegative(typingctx: TypingContext, number: NumbaType, increment: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            a, b = (to_int32(builder, x) for x in args)
            return builder.zext(builder.add(a, b, flags=("nuw", "nsw")), INT64)

        return numba.types.int64(number, increment), codegen

    return add_nonnegative


def make_divmod_u32(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.divmod_u32` to `numba`."""

    @numba.intrinsic
    def divmod_u32(typingctx: TypingContext, number: NumbaType, divisor: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            a, b = (to_int32(builder, x) for x in args)
            quotient = builder.udiv(a, b)
            remainder = builder.sub(a, builder.mul(quotient, b))
            results = [builder.zext(quotient, INT64), builder.zext(remainder, INT64)]
            return context.make_tuple(builder, sig.return_type, results)

        return numba.types.UniTuple(numba.types.int64, 2)(number, divisor), codegen

    return divmod_u32
