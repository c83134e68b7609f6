"""Operations on arrays and tuples for composed code of many agents: views of addresses, strided writes, and integer hints."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from llvmlite import ir

from gpuvec.engine.compiler.llvm import FLOAT, INT32, INT64, element_pointer, store_evict_first, to_int32, to_int64
from gpuvec.engine.compiler.numba_api import NumbaApi, cpu_numba
from gpuvec.engine.compiler.sorting_network import bitonic_merge_pairs, merge_exchange_pairs
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


class ArrayOps(NamedTuple):
    """Compiled operations beside those of `memory_ops.MemoryOps`.

    Attributes:
        view: `view(buffer, index, shape, dtype)` is the C-contiguous array number `index` of that shape in a buffer.
        part: `part(array, start, shape)` is the C-contiguous array of that shape from element `start` of a one-dimensional one.
        assume_below: `assume_below(n)(array)` is the array of integers, whose elements the compiler knows to be in [0, n).
        assume_nonnegative: `assume_nonnegative(x)` is `x` as int64, which the compiler knows not to be negative: as an index
            it needs no test of its sign.
        after: `after(x, n)` is `x + n` for a literal `n`, which the compiler knows not to be negative.
        divide: `divide(u, n)` is `(u // n, u % n)` as int64, of numbers below 2**32; by a constant it takes no division.
        scatter_strided: `scatter_strided(buffer, start, stride, values)` writes `float32(values[f])` to element
            `start + f * stride` of a buffer, with streaming stores.
        put: `put(array, start, stride, values)` writes `float32(values[f])` to element `start + f * stride` of an array.
        move: `move(buffer, index, array, start)` copies four float32 from an array to a buffer with streaming stores; both
            places are aligned to 16 bytes.
        ordered_bits: `ordered_bits(x)` is a uint32 which orders as the float32 `x` does.
        pack_key: `pack_key(x, low, n)` is the bits of the float32 `x` as int32, of which the bits in the mask `low` are those
            of `n`; it orders as `x` does where `x` is not negative.
        atomic_exchange: `atomic_exchange(array, index, value)` writes an int32 of a one-dimensional array; returns the old one.
        fetch_add: `fetch_add(array, index)` adds 1 to an int32 of a one-dimensional array; returns the old value.
        merge_k_smallest: `merge_k_smallest(smallest, candidates)` is the `len(smallest)` smallest int32 of both tuples, in
            ascending order, which `smallest` has too.
    """

    view: DeviceFunction
    part: DeviceFunction
    assume_below: Callable[[int], DeviceFunction]
    assume_nonnegative: DeviceFunction
    after: DeviceFunction
    divide: DeviceFunction
    scatter_strided: DeviceFunction
    put: DeviceFunction
    move: DeviceFunction
    ordered_bits: DeviceFunction
    pack_key: DeviceFunction
    atomic_exchange: DeviceFunction
    fetch_add: DeviceFunction
    merge_k_smallest: DeviceFunction


def make_array_ops(numba: NumbaApi) -> ArrayOps:
    """The operations for one Numba, whose modules are `numba`."""
    return ArrayOps(
        view=_make_view(numba),
        part=_make_part(numba),
        assume_below=_make_assume_below(numba),
        assume_nonnegative=_make_assume_nonnegative(numba),
        after=_make_after(numba),
        divide=_make_divide(numba),
        scatter_strided=_make_scatter_strided(numba),
        put=_make_put(numba),
        move=_make_move(numba),
        ordered_bits=_make_ordered_bits(numba),
        pack_key=_make_pack_key(numba),
        atomic_exchange=_make_atomic_exchange(numba),
        fetch_add=_make_fetch_add(numba),
        merge_k_smallest=_make_merge_k_smallest(numba),
    )


@cache
def cpu_array_ops() -> ArrayOps:
    """The operations on the CPU's memory."""
    return make_array_ops(cpu_numba())


def _data_pointer(context: TargetContext, builder: ir.IRBuilder, kind: NumbaType, array: ir.Value, index: ir.Value) -> ir.Value:
    """A pointer to element `index` of a one-dimensional `array` of Numba type `kind`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [to_int64(builder, index)])


def _array_over(
    numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, kind: NumbaType, data: ir.Value, shape: ir.Value
) -> ir.Value:
    """A C-contiguous array of Numba type `kind` and that `shape`, a tuple, whose first element is at the pointer `data`."""
    itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    dims = [to_int64(builder, d) for d in numba.cgutils.unpack_tuple(builder, shape)]
    strides: list[ir.Value] = [INT64(itemsize)]
    for d in reversed(dims[1:]):
        strides.insert(0, builder.mul(strides[0], d))
    array = context.make_array(kind)(context, builder)
    members = {"data": data, "shape": dims, "strides": strides, "itemsize": INT64(itemsize), "meminfo": None}
    context.populate_array(array, **members)
    return array._getvalue()


def _make_view(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def view(typingctx: TypingContext, address: NumbaType, index: NumbaType, shape: NumbaType, dtype: NumbaType) -> Intrinsic:
        kind = numba.types.Array(dtype.dtype, len(shape), "C")

        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            element, first = context.get_data_type(dtype.dtype), to_int64(builder, args[1])
            for d in numba.cgutils.unpack_tuple(builder, args[2]):
                first = builder.mul(first, to_int64(builder, d))
            data = element_pointer(builder, args[0], first, element, numba.address_space)
            if numba.is_gpu:
                data = builder.addrspacecast(data, element.as_pointer())
            return _array_over(numba, context, builder, kind, data, args[2])

        return kind(address, index, shape, dtype), codegen

    return view


def _make_part(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def part(typingctx: TypingContext, array: NumbaType, start: NumbaType, shape: NumbaType) -> Intrinsic:
        kind = numba.types.Array(array.dtype, len(shape), "C")

        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            data = _data_pointer(context, builder, sig.args[0], args[0], args[1])
            return _array_over(numba, context, builder, kind, data, args[2])

        return kind(array, start, shape), codegen

    return part


def _register_bounded_array(numba: NumbaApi) -> NumbaType:
    """The class of arrays of integers in [0, bound): their elements are loaded with LLVM's `range` metadata."""
    extending, types = numba.extending, numba.types

    class BoundedArray(types.Array):  # type: ignore[misc, name-defined]  # Numba has no annotations
        def __init__(self, dtype: NumbaType, bound: int) -> None:
            self.bound = bound
            super().__init__(dtype, 1, "C", name=f"assume_below({bound}, {dtype})")

        @property
        def key(self) -> tuple[object, int]:  # types are equal if their keys are, and an array's has no bound
            return super().key, self.bound

    models = getattr(extending, "core_models", extending.models)  # numba-cuda has the model of arrays in another module
    extending.register_model(BoundedArray)(models.ArrayModel)

    @extending.lower_builtin(operator.getitem, BoundedArray, types.Integer)
    def getitem(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        kind, index = sig.args
        plain = sig.replace(args=(types.Array(kind.dtype, 1, "C"), index))
        value = context.get_function(operator.getitem, plain)(builder, args)
        value.set_metadata("range", builder.module.add_metadata([value.type(0), value.type(kind.bound)]))
        return value

    return BoundedArray


def _make_assume_below(numba: NumbaApi) -> Callable[[int], DeviceFunction]:
    bounded_array = _register_bounded_array(numba)

    def assume_below(bound: int) -> DeviceFunction:
        @numba.intrinsic
        def bounded(typingctx: TypingContext, array: NumbaType) -> Intrinsic:
            return bounded_array(array.dtype, bound)(array), lambda context, builder, sig, args: args[0]

        return bounded

    return assume_below


def _make_assume_nonnegative(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def assume_nonnegative(typingctx: TypingContext, number: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            return builder.zext(to_int32(builder, args[0]), INT64)

        return numba.types.int64(number), codegen

    return assume_nonnegative


def _make_after(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def after(typingctx: TypingContext, number: NumbaType, increment: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            a, n = (to_int32(builder, x) for x in args)
            return builder.zext(builder.add(a, n, flags=("nuw", "nsw")), INT64)

        return numba.types.int64(number, increment), codegen

    return after


def _make_divide(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def divide(typingctx: TypingContext, number: NumbaType, divisor: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            a, n = (to_int32(builder, x) for x in args)
            quotient = builder.udiv(a, n)
            remainder = builder.sub(a, builder.mul(quotient, n))
            results = [builder.zext(quotient, INT64), builder.zext(remainder, INT64)]
            return context.make_tuple(builder, sig.return_type, results)

        return numba.types.UniTuple(numba.types.int64, 2)(number, divisor), codegen

    return divide


def _strided_floats(
    numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value], base: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """(float32, pointer) of each of the values `args[3]`, which are stored `args[2]` elements apart from `base` on."""
    values = numba.cgutils.unpack_tuple(builder, args[3])
    for k, (kind, value) in enumerate(zip(sig.args[3], values, strict=True)):
        pointer = builder.gep(base, [builder.mul(to_int64(builder, args[2]), INT64(k))])
        yield context.cast(builder, value, kind, numba.types.float32), pointer


def _make_scatter_strided(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def scatter_strided(
        typingctx: TypingContext, address: NumbaType, start: NumbaType, stride: NumbaType, values: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            base = element_pointer(builder, args[0], args[1], FLOAT, numba.address_space)
            for value, pointer in _strided_floats(numba, context, builder, sig, args, base):
                if numba.is_gpu:
                    store_evict_first(builder, pointer, [value])
                else:
                    builder.store(value, pointer)

        return numba.types.void(address, start, stride, values), codegen

    return scatter_strided


def _make_put(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def put(typingctx: TypingContext, array: NumbaType, start: NumbaType, stride: NumbaType, values: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            base = _data_pointer(context, builder, sig.args[0], args[0], args[1])
            for value, pointer in _strided_floats(numba, context, builder, sig, args, base):
                builder.store(value, pointer)

        return numba.types.void(array, start, stride, values), codegen

    return put


def _make_move(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def move(typingctx: TypingContext, address: NumbaType, index: NumbaType, array: NumbaType, start: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            vector_type = ir.VectorType(FLOAT, 4)
            element = _data_pointer(context, builder, sig.args[2], args[2], args[3])
            source = builder.bitcast(element, vector_type.as_pointer())
            target = element_pointer(builder, args[0], args[1], FLOAT, numba.address_space)
            vector = builder.load(source, align=16)
            if numba.is_gpu:
                store_evict_first(builder, target, [builder.extract_element(vector, INT32(k)) for k in range(4)])
            else:
                builder.store(vector, builder.bitcast(target, vector_type.as_pointer()), align=16)

        return numba.types.void(address, index, array, start), codegen

    return move


def _float_bits(
    numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]
) -> ir.Value:
    """The bits of the first argument as a float32."""
    return builder.bitcast(context.cast(builder, args[0], sig.args[0], numba.types.float32), INT32)


def _make_ordered_bits(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def ordered_bits(typingctx: TypingContext, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            bits = _float_bits(numba, context, builder, sig, args)
            # Negative floats have the sign bit, and their other bits order backwards: all bits of them are flipped, and of the
            # others the sign bit alone.
            mask = builder.or_(builder.ashr(bits, INT32(31)), INT32(1 << 31))
            return builder.xor(bits, mask)

        return numba.types.uint32(value), codegen

    return ordered_bits


def _make_pack_key(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def pack_key(typingctx: TypingContext, value: NumbaType, low: NumbaType, number: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            bits = _float_bits(numba, context, builder, sig, args)
            mask, n = (to_int32(builder, x) for x in args[1:])
            return builder.or_(builder.and_(bits, builder.not_(mask)), n)

        return numba.types.int32(value, low, number), codegen

    return pack_key


def _make_atomic_exchange(numba: NumbaApi) -> DeviceFunction:
    int32 = numba.types.int32

    @numba.intrinsic
    def atomic_exchange(typingctx: TypingContext, array: NumbaType, index: NumbaType, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            new_value = context.cast(builder, args[2], sig.args[2], int32)
            pointer = _data_pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.atomic_rmw("xchg", pointer, new_value, "monotonic")

        return int32(array, index, value), codegen

    return atomic_exchange


def _make_fetch_add(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def fetch_add(typingctx: TypingContext, array: NumbaType, index: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            pointer = _data_pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.atomic_rmw("add", pointer, INT32(1), "monotonic")

        return numba.types.int32(array, index), codegen

    return fetch_add


def _exchange_pairs(builder: ir.IRBuilder, values: list[ir.Value], pairs: list[tuple[int, int]]) -> None:
    """Puts the two values of each of the `pairs` of indices in ascending order, one pair after the other."""
    for a, b in pairs:
        first, second = values[a], values[b]
        in_order = builder.icmp_signed("<", first, second)
        values[a], values[b] = builder.select(in_order, first, second), builder.select(in_order, second, first)


def _make_merge_k_smallest(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def merge_k_smallest(typingctx: TypingContext, smallest: NumbaType, candidates: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            best, new_values = (numba.cgutils.unpack_tuple(builder, x) for x in args)
            _exchange_pairs(builder, new_values, merge_exchange_pairs(len(new_values)))
            # The smaller of the k-th best and the k-th candidate from the other end are the smallest of all, and bitonic.
            for k, value in enumerate(new_values[: len(best)]):
                last = best[-1 - k]
                best[-1 - k] = builder.select(builder.icmp_signed("<", value, last), value, last)
            _exchange_pairs(builder, best, bitonic_merge_pairs(0, len(best)))
            return context.make_tuple(builder, sig.return_type, best)

        return smallest(smallest, candidates), codegen

    return merge_k_smallest
