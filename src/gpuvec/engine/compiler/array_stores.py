"""Stores to arrays in kernel code: strided floats, copies to a buffer, and atomic operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llvmlite import ir

from gpuvec.engine.compiler.array_views import array_element_pointer
from gpuvec.engine.compiler.llvm import FLOAT, INT32, INT64, element_pointer, store_evict_first, to_int64
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def _strided_floats(
    numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value], base: ir.Value
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yields (float32, pointer) for each of the values `args[3]`; pointers begin at `base` and are `args[2]` elements apart."""
    values = numba.cgutils.unpack_tuple(builder, args[3])
    for k, (value_type, value) in enumerate(zip(sig.args[3], values, strict=True)):
        pointer = builder.gep(base, [builder.mul(to_int64(builder, args[2]), INT64(k))])
        yield context.cast(builder, value, value_type, numba.types.float32), pointer


def make_scatter_strided(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.scatter_strided` to `numba`."""

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


def make_store_strided(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.store_strided` to `numba`."""

    @numba.intrinsic
    def store_strided(
        typingctx: TypingContext, array: NumbaType, start: NumbaType, stride: NumbaType, values: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            base = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
            for value, pointer in _strided_floats(numba, context, builder, sig, args, base):
                builder.store(value, pointer)

        return numba.types.void(array, start, stride, values), codegen

    return store_strided


def make_store_flat(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.store_flat` to `numba`."""

    @numba.intrinsic
    def store_flat(typingctx: TypingContext, array: NumbaType, index: NumbaType, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            pointer = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
            element = context.cast(builder, args[2], sig.args[2], array.dtype)
            builder.store(context.data_model_manager[array.dtype].as_data(builder, element), pointer)

        return numba.types.void(array, index, value), codegen

    return store_flat


def make_copy_float4(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.copy_float4` to `numba`."""

    @numba.intrinsic
    def copy_float4(
        typingctx: TypingContext, address: NumbaType, index: NumbaType, array: NumbaType, start: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            vector_type = ir.VectorType(FLOAT, 4)
            element = array_element_pointer(context, builder, sig.args[2], args[2], args[3])
            source = builder.bitcast(element, vector_type.as_pointer())
            target = element_pointer(builder, args[0], args[1], FLOAT, numba.address_space)
            vector = builder.load(source, align=16)
            if numba.is_gpu:
                store_evict_first(builder, target, [builder.extract_element(vector, INT32(k)) for k in range(4)])
            else:
                builder.store(vector, builder.bitcast(target, vector_type.as_pointer()), align=16)

        return numba.types.void(address, index, array, start), codegen

    return copy_float4


def make_atomic_exchange(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.atomic_exchange` to `numba`."""
    int32 = numba.types.int32

    @numba.intrinsic
    def atomic_exchange(typingctx: TypingContext, array: NumbaType, index: NumbaType, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            new_value = context.cast(builder, args[2], sig.args[2], int32)
            pointer = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.atomic_rmw("xchg", pointer, new_value, "monotonic")

        return int32(array, index, value), codegen

    return atomic_exchange


def make_fetch_add(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.fetch_add` to `numba`."""

    @numba.intrinsic
    def fetch_add(typingctx: TypingContext, array: NumbaType, index: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            pointer = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
            return builder.atomic_rmw("add", pointer, INT32(1), "monotonic")

        return numba.types.int32(array, index), codegen

    return fetch_add
