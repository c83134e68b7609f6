"""Reads and writes of single elements of a buffer in kernel code, atomic ones included."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT32, INT64, element_pointer, load_evict_first, store_evict_first
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def make_load(numba: NumbaApi, *, streaming: bool) -> DeviceFunction:
    """Declares `MemoryOps.load` to `numba`, or `load_streaming` if `streaming` is true."""
    evict_first = streaming and numba.is_gpu

    @numba.intrinsic
    def load(typingctx: TypingContext, address: NumbaType, index: NumbaType, dtype: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            model = context.data_model_manager[dtype.dtype]
            pointer = element_pointer(builder, args[0], args[1], model.get_data_type(), numba.address_space)
            return model.from_data(builder, load_evict_first(builder, pointer) if evict_first else builder.load(pointer))

        return dtype.dtype(address, index, dtype), codegen

    return load


def _element_to_store(
    context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value], dtype: NumbaType, space: int
) -> tuple[ir.Value, ir.Value]:
    """Returns (value as `dtype`, pointer) for the arguments of `store(address, index, value, dtype)`."""
    model = context.data_model_manager[dtype]
    value = model.as_data(builder, context.cast(builder, args[2], sig.args[2], dtype))
    return value, element_pointer(builder, args[0], args[1], model.get_data_type(), space)


def make_store(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.store` to `numba`."""

    @numba.intrinsic
    def store(typingctx: TypingContext, address: NumbaType, index: NumbaType, value: NumbaType, dtype: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            builder.store(*_element_to_store(context, builder, sig, args, dtype.dtype, numba.address_space))

        return numba.types.void(address, index, value, dtype), codegen

    return store


def make_store_streaming(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.store_streaming` to `numba`."""

    @numba.intrinsic
    def store_streaming(
        typingctx: TypingContext, address: NumbaType, index: NumbaType, value: NumbaType, dtype: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            element, pointer = _element_to_store(context, builder, sig, args, dtype.dtype, numba.address_space)
            store_evict_first(builder, pointer, [element])

        return numba.types.void(address, index, value, dtype), codegen

    return store_streaming


def make_atomic_min(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.atomic_min` to `numba`."""

    @numba.intrinsic
    def atomic_min(typingctx: TypingContext, address: NumbaType, index: NumbaType, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            pointer = element_pointer(builder, args[0], args[1], INT64, numba.address_space)
            builder.atomic_rmw("umin", pointer, args[2], "monotonic")

        return numba.types.void(address, index, numba.types.uint64), codegen

    return atomic_min


def make_atomic_add(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.atomic_add` to `numba`."""

    @numba.intrinsic
    def atomic_add(typingctx: TypingContext, address: NumbaType, index: NumbaType, increment: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            pointer = element_pointer(builder, args[0], args[1], INT32, numba.address_space)
            builder.atomic_rmw("add", pointer, args[2], "monotonic")

        return numba.types.void(address, index, numba.types.uint32), codegen

    return atomic_add
