"""How composed code of many agents reaches its buffers: views of addresses, and tuples spread over rows.

Made for either Numba, as `memory` is: `space` is the LLVM address space of the buffers.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir

from gpuvec.engine.compiler.memory_ops import evicted_first


class ArrayOps(NamedTuple):
    """The operations beside those of `memory.Access`."""

    # view(buffer, index, shape, dtype) -> the index-th C-contiguous array of that shape
    view: Any
    # part(array, start, shape) -> the C-contiguous array of that shape which begins there in a one-dimensional one
    part: Any
    # assume_below(n)(view or part) -> that array of integers, known to be indices: not negative, and below n
    assume_below: Any
    # assume_nonnegative(x) -> x as int64, known not to be negative, so that an index needs no look at its sign
    assume_nonnegative: Any
    # after(x, n) -> x + n, known not to be negative, for a literal n
    after: Any
    # divide(u, n) -> (u // n, u % n) as int64, of numbers below 2**32; by a constant it takes no division
    divide: Any
    # scatter_strided(buffer, start, stride, values): element start + f * stride becomes float32(values[f]), by streaming stores
    scatter_strided: Any
    # put(array, start, stride, values): the same in a one-dimensional array
    put: Any
    # move(buffer, index, array, start): streams four float32 of an array to a buffer, both places aligned to 16 bytes
    move: Any
    # ordered_bits(float32) -> uint32 of the same order: a < b, or equal, as floats or as bits
    ordered_bits: Any
    # pack_key(float32, low, n) -> int32 of the same order if not negative, but for bits `low`, which become those of n
    pack_key: Any
    # atomic_exchange(array, index, value) -> the old value, of a one-dimensional array of int32
    atomic_exchange: Any
    # fetch_add(array, index) -> the old value, which becomes one more, atomically
    fetch_add: Any
    # merge_k_smallest(kept, new) -> the smallest int32 of both tuples, in order like `kept`, and as many
    merge_k_smallest: Any


def exchanges(count: int) -> list[tuple[int, int]]:
    """Pairs of places whose values, put in order one pair after the other, are all in order: Batcher's merge exchange.

    Source: Knuth, "The Art of Computer Programming", volume 3, algorithm 5.2.2 M.
    """
    found, p = [], 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                ends = ((i + j, i + j + k) for i in range(min(k, count - j - k)))
                found += [(a, b) for a, b in ends if a // (2 * p) == b // (2 * p)]
            k //= 2
        p *= 2
    return found


def of_bitonic(first: int, count: int) -> list[tuple[int, int]]:
    """Likewise for `count` values from place `first` on that rise and then fall: halves of a power of two, of which the first
    are missing.
    """
    if count < 2:
        return []
    half = 1 << (count - 1).bit_length() - 1
    pairs = [(k, k + half) for k in range(first, first + count - half)]
    return pairs + of_bitonic(first, count - half) + of_bitonic(first + count - half, half)


def make_array_ops(extending: Any, types: Any, cgutils: Any, space: int) -> ArrayOps:
    """The operations on `space`: 1 is a GPU's global memory, 0 a CPU's."""
    word, half, real = ir.IntType(64), ir.IntType(32), ir.FloatType()

    def wide(builder: Any, value: Any) -> Any:
        return builder.sext(value, word) if value.type.width < 64 else value

    def pointer(builder: Any, address: Any, index: Any, element: Any) -> Any:
        return builder.gep(builder.inttoptr(address, element.as_pointer(space)), [wide(builder, index)])

    def plainly(builder: Any, at: Any, values: list[Any]) -> None:
        (value,) = values
        builder.store(value, at)

    emitted = evicted_first if space == 1 else plainly

    def strided(context: Any, builder: Any, base: Any, stride: Any, kinds: Any, values: Any, stored: Any) -> None:
        """Each of the values as a float32, `stride` elements apart."""
        for k, (kind, value) in enumerate(zip(kinds, cgutils.unpack_tuple(builder, values), strict=True)):
            at = builder.gep(base, [builder.mul(wide(builder, stride), word(k))])
            stored(builder, at, [context.cast(builder, value, kind, types.float32)])

    def laid_out(context: Any, builder: Any, kind: Any, data: Any, shape: Any) -> Any:
        """An array of that type over `data`."""
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        dims = [wide(builder, d) for d in cgutils.unpack_tuple(builder, shape)]
        strides: list[Any] = [word(size)]
        for d in reversed(dims[1:]):
            strides.insert(0, builder.mul(strides[0], d))
        array = context.make_array(kind)(context, builder)
        parts = {"data": data, "shape": dims, "strides": strides, "itemsize": word(size), "meminfo": None}
        context.populate_array(array, **parts)
        return array._getvalue()

    @extending.intrinsic
    def view(typingctx: Any, address: Any, index: Any, shape: Any, dtype: Any) -> Any:
        kind = types.Array(dtype.dtype, len(shape), "C")

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element, at = context.get_data_type(dtype.dtype), wide(builder, args[1])
            for d in cgutils.unpack_tuple(builder, args[2]):
                at = builder.mul(at, wide(builder, d))
            data = pointer(builder, args[0], at, element)
            if space:
                data = builder.addrspacecast(data, element.as_pointer())
            return laid_out(context, builder, kind, data, args[2])

        return kind(address, index, shape, dtype), codegen

    @extending.intrinsic
    def part(typingctx: Any, array: Any, start: Any, shape: Any) -> Any:
        kind = types.Array(array.dtype, len(shape), "C")

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            return laid_out(context, builder, kind, builder.gep(data, [wide(builder, args[1])]), args[2])

        return kind(array, start, shape), codegen

    class Below(types.Array):  # type: ignore[misc]  # a module given as Any
        def __init__(self, dtype: Any, bound: int) -> None:
            self.bound = bound
            super().__init__(dtype, 1, "C", name=f"assume_below({bound}, {dtype})")

        @property
        def key(self) -> Any:  # by which types are told apart; that of arrays knows no bound
            return super().key, self.bound

    models = getattr(extending, "core_models", extending.models)  # numba-cuda has its own array's elsewhere
    extending.register_model(Below)(models.ArrayModel)

    @extending.lower_builtin(operator.getitem, Below, types.Integer)
    def taken(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, index = sig.args
        plain = sig.replace(args=(types.Array(kind.dtype, 1, "C"), index))
        value = context.get_function(operator.getitem, plain)(builder, args)
        value.set_metadata("range", builder.module.add_metadata([value.type(0), value.type(kind.bound)]))
        return value

    def assume_below(bound: int) -> Any:
        @extending.intrinsic
        def known(typingctx: Any, array: Any) -> Any:
            return Below(array.dtype, bound)(array), lambda context, builder, sig, args: args[0]

        return known

    @extending.intrinsic
    def assume_nonnegative(typingctx: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            (x,) = args
            return builder.zext(builder.trunc(x, half) if x.type.width > 32 else x, word)

        return types.int64(number), codegen

    @extending.intrinsic
    def after(typingctx: Any, number: Any, more: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, n = (builder.trunc(x, half) if x.type.width > 32 else x for x in args)
            return builder.zext(builder.add(a, n, flags=("nuw", "nsw")), word)

        return types.int64(number, more), codegen

    @extending.intrinsic
    def divide(typingctx: Any, number: Any, by: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, n = (builder.trunc(x, half) if x.type.width > 32 else x for x in args)
            quotient = builder.udiv(a, n)
            rest = builder.sub(a, builder.mul(quotient, n))
            return context.make_tuple(builder, sig.return_type, [builder.zext(quotient, word), builder.zext(rest, word)])

        return types.UniTuple(types.int64, 2)(number, by), codegen

    @extending.intrinsic
    def scatter_strided(typingctx: Any, address: Any, start: Any, stride: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            strided(context, builder, pointer(builder, args[0], args[1], real), args[2], values, args[3], emitted)

        return types.void(address, start, stride, values), codegen

    @extending.intrinsic
    def put(typingctx: Any, array: Any, start: Any, stride: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            strided(context, builder, builder.gep(data, [wide(builder, args[1])]), args[2], values, args[3], plainly)

        return types.void(array, start, stride, values), codegen

    @extending.intrinsic
    def move(typingctx: Any, address: Any, index: Any, array: Any, start: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            four = ir.VectorType(real, 4)
            data = context.make_array(sig.args[2])(context, builder, args[2]).data
            source = builder.bitcast(builder.gep(data, [wide(builder, args[3])]), four.as_pointer())
            target, found = pointer(builder, args[0], args[1], real), builder.load(source, align=16)
            if space == 1:
                evicted_first(builder, target, [builder.extract_element(found, half(k)) for k in range(4)])
            else:
                builder.store(found, builder.bitcast(target, four.as_pointer()), align=16)

        return types.void(address, index, array, start), codegen

    @extending.intrinsic
    def ordered_bits(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            raw = builder.bitcast(context.cast(builder, args[0], sig.args[0], types.float32), half)
            # Negative floats order backwards, and below the others: flip all their bits, of the others the sign.
            mask = builder.or_(builder.ashr(raw, half(31)), half(1 << 31))
            return builder.xor(raw, mask)

        return types.uint32(value), codegen

    def exchanged(how: str, context: Any, builder: Any, sig: Any, args: Any, value: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw(how, builder.gep(data, [wide(builder, args[1])]), value, "monotonic")

    @extending.intrinsic
    def atomic_exchange(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return exchanged("xchg", context, builder, sig, args, context.cast(builder, args[2], sig.args[2], types.int32))

        return types.int32(array, index, value), codegen

    @extending.intrinsic
    def fetch_add(typingctx: Any, array: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return exchanged("add", context, builder, sig, args, half(1))

        return types.int32(array, index), codegen

    @extending.intrinsic
    def pack_key(typingctx: Any, value: Any, low: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            raw = builder.bitcast(context.cast(builder, args[0], sig.args[0], types.float32), half)
            low, n = (builder.trunc(x, half) if x.type.width > 32 else x for x in args[1:])
            return builder.or_(builder.and_(raw, builder.not_(low)), n)

        return types.int32(value, low, number), codegen

    @extending.intrinsic
    def merge_k_smallest(typingctx: Any, kept: Any, new: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            best, others = (cgutils.unpack_tuple(builder, x) for x in args)

            def order(values: list[Any], pairs: list[tuple[int, int]]) -> None:
                for a, b in pairs:
                    less = builder.icmp_signed("<", values[a], values[b])
                    one, other = values[a], values[b]
                    values[a], values[b] = builder.select(less, one, other), builder.select(less, other, one)

            order(others, exchanges(len(others)))
            for k, value in enumerate(others[: len(best)]):
                last = best[-1 - k]
                best[-1 - k] = builder.select(builder.icmp_signed("<", value, last), value, last)
            order(best, of_bitonic(0, len(best)))
            return context.make_tuple(builder, sig.return_type, best)

        return kept(kept, new), codegen

    return ArrayOps(
        view,
        part,
        assume_below,
        assume_nonnegative,
        after,
        divide,
        scatter_strided,
        put,
        move,
        ordered_bits,
        pack_key,
        atomic_exchange,
        fetch_add,
        merge_k_smallest,
    )


@cache
def cpu_array_ops() -> ArrayOps:
    """The operations on the CPU's memory."""
    from numba import extending, types
    from numba.core import cgutils

    return make_array_ops(extending, types, cgutils, 0)
