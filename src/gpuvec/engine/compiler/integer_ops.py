"""Integer arithmetic in kernel code that tells the compiler the sign and the width of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT16, INT32, INT64, to_int32
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext

# Selectors of `prmt`, whose digits name bytes of the first word, 0 to 3, and of the second, 4 to 7; the last digit is the
# lowest byte of the result. Byte 1 of a word that has one byte is 0.
LOW_BYTES, LOW_HALVES = 0x1140, 0x5410


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


def make_divmod_i32(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.divmod_i32` to `numba`."""

    @numba.intrinsic
    def divmod_i32(typingctx: TypingContext, number: NumbaType, divisor: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            a, b = (to_int32(builder, x) for x in args)
            # The compiler derives from a remainder, and not from a difference, that the result is not negative.
            return context.make_tuple(builder, sig.return_type, [builder.udiv(a, b), builder.urem(a, b)])

        return numba.types.UniTuple(numba.types.int32, 2)(number, divisor), codegen

    return divmod_i32


def make_pack_bytes(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.pack_bytes` to `numba`."""

    @numba.intrinsic
    def pack_bytes(typingctx: TypingContext, values: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            number_types = [getattr(number_type, "literal_type", number_type) for number_type in sig.args[0].types]
            numbers = numba.cgutils.unpack_tuple(builder, args[0])
            if set(number_types) == {numba.types.boolean}:
                # A selection of a constant for each flag takes fewer instructions than conversions and permutations.
                word = reduce(builder.or_, [builder.select(x, INT32(1 << 8 * n), INT32(0)) for n, x in enumerate(numbers)])
            else:
                typed_numbers = zip(number_types, numbers, strict=True)
                words = [builder.zext(context.cast(builder, x, t, numba.types.uint8), INT32) for t, x in typed_numbers]
                word = (_permute_words if numba.is_gpu else _shift_words)(builder, words)
            return word if len(values) == 4 else builder.trunc(word, INT16)

        return {2: numba.types.uint16, 4: numba.types.uint32}[len(values)](values), codegen

    return pack_bytes


def _shift_words(builder: ir.IRBuilder, words: Sequence[ir.Value]) -> ir.Value:
    """Returns a word of the lowest bytes of two or four words, whose other bytes are 0."""
    return reduce(builder.or_, [builder.shl(word, INT32(8 * n)) for n, word in enumerate(words)])


def _permute_words(builder: ir.IRBuilder, words: Sequence[ir.Value]) -> ir.Value:
    """As `_shift_words`, by permutations of bytes."""
    halves = [_permute_bytes(builder, words[k], words[k + 1], LOW_BYTES) for k in range(0, len(words), 2)]
    return _permute_bytes(builder, halves[0], halves[1], LOW_HALVES) if len(words) == 4 else halves[0]


def _permute_bytes(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, selector: int) -> ir.Value:
    """Returns a word of four of the eight bytes of `a` and `b`, which PTX's `prmt` selects by the digits of `selector`."""
    function = ir.FunctionType(INT32, [INT32, INT32])
    return builder.call(ir.InlineAsm(function, f"prmt.b32 $0, $1, $2, {selector:#06x};", "=r,r,r", side_effect=False), [a, b])
