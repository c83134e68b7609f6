"""The compiled operations on arrays and integers that the kernels of multi-agent environments call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial, reduce
from math import prod
from typing import NamedTuple

from llvmlite import ir

from gpuvec.engine.compiler.block_copies import BlockCopy, CopyLaunch, make_block_copies
from gpuvec.engine.compiler.llvm import (
    FLOAT,
    INT16,
    INT32,
    INT64,
    Args,
    Builder,
    element_pointer,
    store_evict_first,
    to_int32,
    to_int64,
)
from gpuvec.engine.compiler.numba_api import NumbaApi, Operations, cpu_numba
from gpuvec.engine.compiler.static_arrays import element_address, is_static, static_array_class, to_numba_array
from gpuvec.engine.compiler.types import DeviceFunction, Signature, TargetContext

# Selectors of `prmt`, whose digits name bytes of the first word, 0 to 3, and of the second, 4 to 7; the last digit is the
# lowest byte of the result. Byte 1 of a word that has one byte is 0.
LOW_BYTES, LOW_HALVES = 0x1140, 0x5410
COMPARISONS = {"min": "<", "max": ">"}  # {kind: how a new value that replaces the old one compares with it}


class ArrayOps(NamedTuple):
    """Compiled operations in addition to those of `memory_ops.MemoryOps`.

    A buffer is the address of an array in global memory; an array is one that Numba knows, in shared or local memory.
    Operations that are not among the attributes are described at the functions of the same names in this module.

    Attributes:
        view: `view(shape)(buffer, index, dtype)` returns the C-contiguous array of that shape which is number `index` of those
            that the buffer contains one after the other. The shape is a constant (see `static_arrays`).
        subarray: `subarray(shape)(array, start)` returns the C-contiguous array of that shape which begins at element `start`
            of a contiguous array.
        assume_below: `assume_below(n)(array)` returns the array of integers, whose elements the compiler then knows to be in
            [0, n).
        block_copies: `block_copies(copies, launch)(b, w, e0, m, thread, store)` runs copies between buffers of the batch `b`
            and arrays of the work `w` (see `copy_types`), for the `m` envs of a block from `e0` on. For copies without an
            array, `store(w, x, value)` stores word x of the block; for others, `store` is None.
        atomic_update: `atomic_update(kind)` returns `update(array, index, value)`, which adds `value` to element `index` of a
            contiguous array of any shape, elements in C order, or with "min" or "max" replaces the element by the smaller or
            larger of both. Elements are int32, for extrema also float32 without -0.0; NaN must not be passed.
    """

    view: Callable[[tuple[int, ...]], DeviceFunction]
    subarray: Callable[[tuple[int, ...]], DeviceFunction]
    numba_array: DeviceFunction
    assume_below: Callable[[int], DeviceFunction]
    assume_nonnegative: DeviceFunction
    add_nonnegative: DeviceFunction
    divmod_u32: DeviceFunction
    divmod_i32: DeviceFunction
    pack_bytes: DeviceFunction
    scatter_strided: DeviceFunction
    store_strided: DeviceFunction
    copy_float4: DeviceFunction
    block_copies: Callable[[tuple[BlockCopy, ...], CopyLaunch], DeviceFunction]
    ordered_bits: DeviceFunction
    pack_key: DeviceFunction
    atomic_exchange: DeviceFunction
    fetch_add: DeviceFunction
    atomic_update: Callable[[str], DeviceFunction]
    compare_exchange: DeviceFunction
    store_flat: DeviceFunction
    merge_k_smallest: DeviceFunction


operations = Operations()


def make_array_ops(numba: NumbaApi) -> ArrayOps:
    """Declares all operations to `numba`, Numba or numba-cuda."""
    void, intrinsic, static_array = numba.types.void, numba.intrinsic, static_array_class(numba)

    @cache
    def view(shape: tuple[int, ...]) -> DeviceFunction:
        static = partial(static_array, shape=shape)
        return intrinsic("view", lambda _, address, index, dtype: static(dtype.dtype)(address, index, dtype), _view)

    @cache
    def subarray(shape: tuple[int, ...]) -> DeviceFunction:
        static = partial(static_array, shape=shape)
        return intrinsic(
            "subarray",
            lambda _, array, start: static(array.dtype, mutable=array.mutable)(array, start),
            lambda _, *call: _element(*call),
        )

    @cache
    def assume_below(bound: int) -> DeviceFunction:
        return intrinsic(
            "assume_below", lambda _, array: static_array(array.dtype, array.shape, bound)(array), lambda *call: call[-1][0]
        )

    @cache
    def atomic_update(kind: str) -> DeviceFunction:
        return intrinsic("update", lambda _, array, index, value: void(array, index, value), partial(_atomic_update, kind))

    return ArrayOps(
        view, subarray, assume_below=assume_below, atomic_update=atomic_update, block_copies=make_block_copies(numba),
        **operations.declare(numba),
    )  # fmt: skip


def _view(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    element_type = context.get_data_type(sig.args[2].dtype)
    first = builder.mul(to_int64(builder, args[1]), INT64(prod(sig.return_type.shape)))
    data = element_pointer(builder, args[0], first, element_type, numba.address_space)
    return builder.addrspacecast(data, element_type.as_pointer()) if numba.is_gpu else data


def _element(context: TargetContext, builder: Builder, sig: Signature, args: Args, array: int = 0) -> ir.Value:
    """Returns a pointer to element `args[array + 1]` of the array `args[array]`, which are counted in C order."""
    address = element_address(context, builder, sig.args[array], args[array])
    return builder.gep(address, [to_int64(builder, args[array + 1])])


@operations.add(lambda types, array: (array.numba_array if is_static(array) else array)(array))
def numba_array(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`numba_array(array)` returns Numba's own array with the elements of an array of constant shape."""
    return to_numba_array(context, builder, sig.args[0], args[0]) if is_static(sig.args[0]) else args[0]


@operations.add(lambda types, number: types.int64(number))
def assume_nonnegative(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`assume_nonnegative(x)` returns `x` as an int64 that the compiler knows not to be negative, so that an index needs no
    test of its sign.
    """
    return builder.zext(to_int32(builder, args[0]), INT64)


@operations.add(lambda types, number, increment: types.int64(number, increment))
def add_nonnegative(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`add_nonnegative(x, n)` returns `x + n` for a literal `n` as an int64 that the compiler knows not to be negative and not
    to wrap.
    """
    a, b = (to_int32(builder, x) for x in args)
    return builder.zext(builder.add(a, b, flags=("nuw", "nsw")), INT64)


@operations.add(lambda types, number, divisor: types.UniTuple(types.int64, 2)(number, divisor))
def divmod_u32(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`divmod_u32(x, n)` returns `(x // n, x % n)` as int64, for numbers in [0, 2**32). Where `n` is a constant, the compiler
    replaces the division by a multiplication.
    """
    a, b = (to_int32(builder, x) for x in args)
    quotient = builder.udiv(a, b)
    remainder = builder.sub(a, builder.mul(quotient, b))
    results = [builder.zext(quotient, INT64), builder.zext(remainder, INT64)]
    return context.make_tuple(builder, sig.return_type, results)


@operations.add(lambda types, number, divisor: types.UniTuple(types.int32, 2)(number, divisor))
def divmod_i32(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`divmod_i32(x, n)` returns `(x // n, x % n)` as int32 that the compiler knows not to be negative, for numbers in [0,
    2**31) and a constant `n`. A comparison with an int32 of a state then takes one instruction.
    """
    a, b = (to_int32(builder, x) for x in args)
    # The compiler derives from a remainder, and not from a difference, that the result is not negative.
    return context.make_tuple(builder, sig.return_type, [builder.udiv(a, b), builder.urem(a, b)])


@operations.add(lambda types, values: {2: types.uint16, 4: types.uint32}[len(values)](values))
def pack_bytes(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`pack_bytes(values)` returns the uint16 or uint32 whose bytes are these two or four numbers as uint8, the first one the
    lowest.
    """
    number_types = [getattr(number_type, "literal_type", number_type) for number_type in sig.args[0].types]
    numbers = numba.cgutils.unpack_tuple(builder, args[0])
    if set(number_types) == {numba.types.boolean}:
        # A selection of a constant for each flag takes fewer instructions than conversions and permutations.
        word = reduce(builder.or_, [builder.select(x, INT32(1 << 8 * n), INT32(0)) for n, x in enumerate(numbers)])
        return word if len(numbers) == 4 else builder.trunc(word, INT16)
    typed_numbers = zip(number_types, numbers, strict=True)
    words = [builder.zext(context.cast(builder, x, t, numba.types.uint8), INT32) for t, x in typed_numbers]
    if numba.is_gpu:
        halves = [_permute_bytes(builder, words[k], words[k + 1], LOW_BYTES) for k in range(0, len(words), 2)]
        word = _permute_bytes(builder, halves[0], halves[1], LOW_HALVES) if len(words) == 4 else halves[0]
    else:
        word = reduce(builder.or_, [builder.shl(word, INT32(8 * n)) for n, word in enumerate(words)])
    return word if len(numbers) == 4 else builder.trunc(word, INT16)


def _permute_bytes(builder: Builder, a: ir.Value, b: ir.Value, selector: int) -> ir.Value:
    """Returns a word of four of the eight bytes of `a` and `b`, which PTX's `prmt` selects by the digits of `selector`."""
    function = ir.FunctionType(INT32, [INT32, INT32])
    return builder.call(ir.InlineAsm(function, f"prmt.b32 $0, $1, $2, {selector:#06x};", "=r,r,r", side_effect=False), [a, b])


def _strided_floats(
    numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args, base: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yields (float32, pointer) for each of the values `args[3]`; pointers begin at `base` and are `args[2]` elements apart."""
    values = numba.cgutils.unpack_tuple(builder, args[3])
    for k, (value_type, value) in enumerate(zip(sig.args[3], values, strict=True)):
        pointer = builder.gep(base, [builder.mul(to_int64(builder, args[2]), INT64(k))])
        yield context.cast(builder, value, value_type, numba.types.float32), pointer


@operations.add(lambda types, address, start, stride, values: types.void(address, start, stride, values))
def scatter_strided(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`scatter_strided(buffer, start, stride, values)` writes `float32(values[f])` to element `start + f * stride` of a buffer,
    with streaming stores.
    """
    base = element_pointer(builder, args[0], args[1], FLOAT, numba.address_space)
    for value, pointer in _strided_floats(numba, context, builder, sig, args, base):
        if numba.is_gpu:
            store_evict_first(builder, pointer, [value])
        else:
            builder.store(value, pointer)


@operations.add(lambda types, array, start, stride, values: types.void(array, start, stride, values))
def store_strided(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`store_strided(array, start, stride, values)` writes `float32(values[f])` to element `start + f * stride` of an array."""
    base = _element(context, builder, sig, args)
    for value, pointer in _strided_floats(numba, context, builder, sig, args, base):
        builder.store(value, pointer)


@operations.add(lambda types, array, index, value: types.void(array, index, value))
def store_flat(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`store_flat(array, index, value)` writes element `index` of a contiguous array of any shape, in C order."""
    pointer, dtype = _element(context, builder, sig, args), sig.args[0].dtype
    element = context.cast(builder, args[2], sig.args[2], dtype)
    builder.store(context.data_model_manager[dtype].as_data(builder, element), pointer)


@operations.add(lambda types, address, index, array, start: types.void(address, index, array, start))
def copy_float4(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`copy_float4(buffer, index, array, start)` copies four float32 from an array to a buffer with a streaming store. Both
    places are aligned to 16 bytes.
    """
    vector_type = ir.VectorType(FLOAT, 4)
    source = builder.bitcast(_element(context, builder, sig, args, 2), vector_type.as_pointer())
    target = element_pointer(builder, args[0], args[1], FLOAT, numba.address_space)
    vector = builder.load(source, align=16)
    if numba.is_gpu:
        store_evict_first(builder, target, [builder.extract_element(vector, INT32(k)) for k in range(4)])
    else:
        builder.store(vector, builder.bitcast(target, vector_type.as_pointer()), align=16)


# The result of atomic updates does not depend on the order of threads. On a CPU one thread runs an env, and in the simulator
# one thread runs at a time, so an update is a load and a store there.


@operations.add(lambda types, array, index, value: types.int32(array, index, value))
def atomic_exchange(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`atomic_exchange(array, index, value)` writes an int32 of a one-dimensional array and returns the old value."""
    new_value = context.cast(builder, args[2], sig.args[2], numba.types.int32)
    return builder.atomic_rmw("xchg", _element(context, builder, sig, args), new_value, "monotonic")


@operations.add(lambda types, array, index: types.int32(array, index))
def fetch_add(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`fetch_add(array, index)` adds 1 to an int32 of a one-dimensional array and returns the old value."""
    return builder.atomic_rmw("add", _element(context, builder, sig, args), INT32(1), "monotonic")


def _atomic_update(kind: str, numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    pointer = _element(context, builder, sig, args)
    new = context.cast(builder, args[2], sig.args[2], sig.args[0].dtype)
    if numba.is_gpu and new.type == FLOAT:
        # Floats without the sign bit have the order of their bits as signed integers, and are larger than all others. Those
        # with the sign bit have the reverse order of their bits as unsigned integers. So a minimum is the signed minimum of the
        # bits if the new value has no sign bit, whatever the old one is, and their unsigned maximum if it has.
        new_word, word = builder.bitcast(new, INT32), builder.bitcast(pointer, INT32.as_pointer())
        with builder.if_else(builder.icmp_signed(">=", new_word, INT32(0))) as (without_sign, with_sign):
            with without_sign:
                builder.atomic_rmw(kind, word, new_word, "monotonic")
            with with_sign:
                builder.atomic_rmw("umax" if kind == "min" else "umin", word, new_word, "monotonic")
    elif numba.is_gpu:
        builder.atomic_rmw(kind, pointer, new, "monotonic")
    else:
        old = builder.load(pointer)
        if kind == "add":
            builder.store(builder.add(old, new), pointer)
            return
        compare = builder.fcmp_ordered if new.type == FLOAT else builder.icmp_signed
        builder.store(builder.select(compare(COMPARISONS[kind], new, old), new, old), pointer)


@operations.add(lambda types, array, index, expected, value: types.int32(array, index, expected, value))
def compare_exchange(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`compare_exchange(array, index, expected, value)` writes an int32 of a contiguous array of any shape if it is `expected`,
    and returns the old value.
    """
    pointer = _element(context, builder, sig, args)
    old, new = (context.cast(builder, args[k], sig.args[k], numba.types.int32) for k in (2, 3))
    if numba.is_gpu:
        return builder.extract_value(builder.cmpxchg(pointer, old, new, "monotonic"), 0)
    current = builder.load(pointer)
    builder.store(builder.select(builder.icmp_signed("==", current, old), new, current), pointer)
    return current


def _float_bits(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """Returns the bits of the first argument as a float32."""
    return builder.bitcast(context.cast(builder, args[0], sig.args[0], numba.types.float32), INT32)


@operations.add(lambda types, value: types.uint32(value))
def ordered_bits(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`ordered_bits(x)` returns a uint32; these have the same order as the float32 `x`."""
    float_bits = _float_bits(numba, context, builder, sig, args)
    # A negative float has the sign bit, and its other bits have the reverse order: all of its bits are flipped. Of a
    # nonnegative float the sign bit alone is flipped.
    mask = builder.or_(builder.ashr(float_bits, INT32(31)), INT32(1 << 31))
    return builder.xor(float_bits, mask)


@operations.add(lambda types, value, low_mask, number: types.int32(value, low_mask, number))
def pack_key(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`pack_key(x, low_mask, n)` returns the bits of the float32 `x` as an int32, in which `n` replaces the bits of `low_mask`.
    Keys have the same order as `x` where `x` is not negative.
    """
    float_bits = _float_bits(numba, context, builder, sig, args)
    mask, low_bits = (to_int32(builder, x) for x in args[1:])
    return builder.or_(builder.and_(float_bits, builder.not_(mask)), low_bits)


@operations.add(lambda types, smallest, candidates: smallest(smallest, candidates))
def merge_k_smallest(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`merge_k_smallest(smallest, candidates)` returns the `len(smallest)` smallest int32 of both tuples in ascending order.
    `smallest` must be in ascending order.
    """
    best, new_values = (numba.cgutils.unpack_tuple(builder, x) for x in args)
    _exchange_pairs(builder, new_values, merge_exchange_pairs(len(new_values)))
    # Candidate k is compared with the k-th best from the end. The smaller ones of these pairs are the smallest values
    # of both tuples, and they form a bitonic sequence.
    for k, value in enumerate(new_values[: len(best)]):
        last = best[-1 - k]
        best[-1 - k] = builder.select(builder.icmp_signed("<", value, last), value, last)
    _exchange_pairs(builder, best, bitonic_merge_pairs(0, len(best)))
    return context.make_tuple(builder, sig.return_type, best)


def _exchange_pairs(builder: Builder, values: list[ir.Value], pairs: list[tuple[int, int]]) -> None:
    """Puts the two values of each of the `pairs` of indices in ascending order, one pair after the other."""
    for a, b in pairs:
        first, second = values[a], values[b]
        is_ordered = builder.icmp_signed("<", first, second)
        values[a], values[b] = builder.select(is_ordered, first, second), builder.select(is_ordered, second, first)


# Sorting networks sort values in registers without branches. A network is a list of comparators: pairs of indices, whose values
# are exchanged unless they are in ascending order.


def merge_exchange_pairs(count: int) -> list[tuple[int, int]]:
    """Returns the comparators of a network that sorts `count` values.

    Source: Batcher's merge exchange; Knuth, "The Art of Computer Programming", volume 3, algorithm 5.2.2 M.
    """
    pairs, p = [], 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                candidates = ((i + j, i + j + k) for i in range(min(k, count - j - k)))
                pairs += [(a, b) for a, b in candidates if a // (2 * p) == b // (2 * p)]
            k //= 2
        p *= 2
    return pairs


def bitonic_merge_pairs(first: int, count: int) -> list[tuple[int, int]]:
    """Returns the comparators of a network that sorts a bitonic sequence.

    Args:
        first: index of the first value.
        count: number of values, which first increase and then decrease. If it is not a power of two, the network is that of
            the next larger power of two without the first values.
    """
    if count < 2:
        return []
    half = 1 << (count - 1).bit_length() - 1
    pairs = [(k, k + half) for k in range(first, first + count - half)]
    return pairs + bitonic_merge_pairs(first, count - half) + bitonic_merge_pairs(first + count - half, half)


@cache
def cpu_array_ops() -> ArrayOps:
    """The operations on the CPU's memory."""
    return make_array_ops(cpu_numba())
