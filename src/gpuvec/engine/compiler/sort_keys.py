"""Floats as integers of the same order, and the selection of the smallest of them without branches."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT32, to_int32
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.sorting_network import bitonic_merge_pairs, merge_exchange_pairs
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def _float_bits(
    numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]
) -> ir.Value:
    """Returns the bits of the first argument as a float32."""
    return builder.bitcast(context.cast(builder, args[0], sig.args[0], numba.types.float32), INT32)


def make_ordered_bits(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.ordered_bits` to `numba`."""

    @numba.intrinsic
    def ordered_bits(typingctx: TypingContext, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            float_bits = _float_bits(numba, context, builder, sig, args)
            # A negative float has the sign bit, and its other bits have the reverse order: all of its bits are flipped. Of a
            # nonnegative float the sign bit alone is flipped.
            mask = builder.or_(builder.ashr(float_bits, INT32(31)), INT32(1 << 31))
            return builder.xor(float_bits, mask)

        return numba.types.uint32(value), codegen

    return ordered_bits


def make_pack_key(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.pack_key` to `numba`."""

    @numba.intrinsic
    def pack_key(typingctx: TypingContext, value: NumbaType, low_mask: NumbaType, number: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            float_bits = _float_bits(numba, context, builder, sig, args)
            mask, low_bits = (to_int32(builder, x) for x in args[1:])
            return builder.or_(builder.and_(float_bits, builder.not_(mask)), low_bits)

        return numba.types.int32(value, low_mask, number), codegen

    return pack_key


def _exchange_pairs(builder: ir.IRBuilder, values: list[ir.Value], pairs: list[tuple[int, int]]) -> None:
    """Puts the two values of each of the `pairs` of indices in ascending order, one pair after the other."""
    for a, b in pairs:
        first, second = values[a], values[b]
        is_ordered = builder.icmp_signed("<", first, second)
        values[a], values[b] = builder.select(is_ordered, first, second), builder.select(is_ordered, second, first)


def make_merge_k_smallest(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.merge_k_smallest` to `numba`."""

    @numba.intrinsic
    def merge_k_smallest(typingctx: TypingContext, smallest: NumbaType, candidates: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            best, new_values = (numba.cgutils.unpack_tuple(builder, x) for x in args)
            _exchange_pairs(builder, new_values, merge_exchange_pairs(len(new_values)))
            # Candidate k is compared with the k-th best from the end. The smaller ones of these pairs are the smallest values
            # of both tuples, and they form a bitonic sequence.
            for k, value in enumerate(new_values[: len(best)]):
                last = best[-1 - k]
                best[-1 - k] = builder.select(builder.icmp_signed("<", value, last), value, last)
            _exchange_pairs(builder, best, bitonic_merge_pairs(0, len(best)))
            return context.make_tuple(builder, sig.return_type, best)

        return smallest(smallest, candidates), codegen

    return merge_k_smallest
