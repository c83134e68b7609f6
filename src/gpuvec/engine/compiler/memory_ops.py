"""Reads and writes of buffers in composed code, by address and element index, on the CPU and on a GPU.

A batch of plain addresses is cheap to pass to a kernel (an array is 7 to 9 kernel arguments, and costs a reference count
at each use on a CPU), and a row can be accessed with 16-byte instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from llvmlite import ir

from gpuvec.engine.compiler.llvm import FLOAT, INT32, INT64, element_pointer, load_evict_first, store_evict_first, to_int64
from gpuvec.engine.compiler.numba_api import NumbaApi, cpu_numba
from gpuvec.engine.compiler.types import (
    DeviceFunction,
    DType,
    Intrinsic,
    NumbaType,
    Row,
    Signature,
    TargetContext,
    TypingContext,
)


class MemoryOps(NamedTuple):
    """Compiled operations on buffers. An index counts elements, that of a row counts rows.

    Attributes:
        load: `load(buffer, index, dtype)` returns the element.
        store: `store(buffer, index, value, dtype)` writes the element.
        load_row: `load_row(buffer, index, like)` returns a tuple of `len(like)` elements of `like`'s type.
        store_row: `store_row(buffer, index, values)` writes a tuple of equal types.
        store_streaming: `store(...)` for what no kernel reads again: it leaves a GPU's cache first.
        store_row_streaming: `store_row(...)` for what no kernel reads again.
        atomic_min: `atomic_min(buffer, index, value)` lowers the uint64 to `value`.
        atomic_add: `atomic_add(buffer, index, increment)` adds to the uint32, and does not wait for the old value.
        any_in_sector: `any_in_sector(flag)` is whether `flag` holds for this env or for the one whose 16-byte row shares a
            32-byte sector with its row.
        load_column: `load_column(buffer, start, stride, like)` returns `len(like)` float32 elements, `stride` apart.
        store_column: `store_column(buffer, start, stride, values)` writes float32 elements, `stride` apart.
        to_floats: `to_floats(values, like)` casts the first `len(like)` numbers of a tuple to float32.
        load_streaming: `load(...)` for what is read once: it leaves a GPU's cache first.
    """

    load: DeviceFunction
    store: DeviceFunction
    load_row: DeviceFunction
    store_row: DeviceFunction
    store_streaming: DeviceFunction
    store_row_streaming: DeviceFunction
    atomic_min: DeviceFunction
    atomic_add: DeviceFunction
    any_in_sector: DeviceFunction
    load_column: DeviceFunction
    store_column: DeviceFunction
    to_floats: DeviceFunction
    load_streaming: DeviceFunction


def row_of(dtype: DType, width: int) -> Row:
    """A tuple of `width` zeros of `dtype`, whose type says what `load_row` and `to_floats` return."""
    return (dtype(0),) * width


def make_memory_ops(numba: NumbaApi, any_in_sector: DeviceFunction) -> MemoryOps:
    """The operations for one Numba.

    Args:
        numba: the modules that intrinsics are declared with.
        any_in_sector: the device's implementation; see `MemoryOps`.
    """
    store, store_row = _make_store(numba), _make_store_row(numba)
    return MemoryOps(
        load=_make_load(numba, streaming=False),
        store=store,
        load_row=_make_load_row(numba),
        store_row=store_row,
        store_streaming=_make_store_streaming(numba) if numba.is_gpu else store,
        store_row_streaming=_make_store_row_streaming(numba) if numba.is_gpu else store_row,
        atomic_min=_make_atomic_min(numba),
        atomic_add=_make_atomic_add(numba),
        any_in_sector=any_in_sector,
        load_column=_make_load_column(numba),
        store_column=_make_store_column(numba),
        to_floats=_make_to_floats(numba),
        load_streaming=_make_load(numba, streaming=True),
    )


@cache  # Numba never frees an intrinsic
def cpu_memory_ops() -> MemoryOps:
    """The operations on the CPU's memory, where no env shares a cache sector with another."""
    from numba import njit

    @njit
    def any_in_sector(flag: bool) -> bool:
        return flag

    return make_memory_ops(cpu_numba(), any_in_sector)


def _row_pointer(builder: ir.IRBuilder, args: Sequence[ir.Value], width: int, element: ir.Type, space: int) -> ir.Value:
    """The first element of row `args[1]`, `width` elements each, of the buffer at address `args[0]`."""
    index = to_int64(builder, args[1])
    return element_pointer(builder, args[0], builder.mul(index, INT64(width)), element, space)


def _column_pointers(builder: ir.IRBuilder, args: Sequence[ir.Value], width: int, space: int) -> list[ir.Value]:
    """Pointers to `width` float32 elements of the buffer at `args[0]`, from element `args[1]` on and `args[2]` apart."""
    base, stride = element_pointer(builder, args[0], args[1], FLOAT, space), to_int64(builder, args[2])
    return [builder.gep(base, [builder.mul(stride, INT64(j))]) for j in range(width)]


def _vector_accesses(width: int, element: ir.Type, space: int) -> tuple[int, range]:
    """(elements of one access, index of the first element of each access) for a row of `width` elements.

    A GPU accesses 16 or 8 bytes at once if all rows keep that alignment. A CPU accesses single elements, since its compiler
    vectorises over several rows.
    """
    vectorised = space and str(element) in ("float", "i32")
    size = next(k for k in (4, 2, 1) if width % k == 0) if vectorised else 1
    return size, range(0, width, size)


def _make_load(numba: NumbaApi, *, streaming: bool) -> DeviceFunction:
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
    """(value as `dtype`, pointer) of a `store(address, index, value, dtype)`."""
    model = context.data_model_manager[dtype]
    value = model.as_data(builder, context.cast(builder, args[2], sig.args[2], dtype))
    return value, element_pointer(builder, args[0], args[1], model.get_data_type(), space)


def _make_store(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def store(typingctx: TypingContext, address: NumbaType, index: NumbaType, value: NumbaType, dtype: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            builder.store(*_element_to_store(context, builder, sig, args, dtype.dtype, numba.address_space))

        return numba.types.void(address, index, value, dtype), codegen

    return store


def _make_store_streaming(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def store_streaming(
        typingctx: TypingContext, address: NumbaType, index: NumbaType, value: NumbaType, dtype: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            element, pointer = _element_to_store(context, builder, sig, args, dtype.dtype, numba.address_space)
            store_evict_first(builder, pointer, [element])

        return numba.types.void(address, index, value, dtype), codegen

    return store_streaming


def _make_load_row(numba: NumbaApi) -> DeviceFunction:
    space = numba.address_space

    @numba.intrinsic
    def load_row(typingctx: TypingContext, address: NumbaType, index: NumbaType, like: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            element = context.get_data_type(like.dtype)
            size, starts = _vector_accesses(len(like), element, space)
            base, values = _row_pointer(builder, args, len(like), element, space), []
            for j in starts:
                pointer = builder.gep(base, [INT64(j)])
                if size == 1:
                    values.append(builder.load(pointer))
                    continue
                vector_type = ir.VectorType(element, size)
                vector = builder.load(builder.bitcast(pointer, vector_type.as_pointer(space)), align=4 * size)
                values += [builder.extract_element(vector, INT32(k)) for k in range(size)]
            return context.make_tuple(builder, sig.return_type, values)

        return numba.types.UniTuple(like.dtype, len(like))(address, index, like), codegen

    return load_row


def _make_store_row(numba: NumbaApi) -> DeviceFunction:
    space = numba.address_space

    @numba.intrinsic
    def store_row(typingctx: TypingContext, address: NumbaType, index: NumbaType, values: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            element = context.get_data_type(values.dtype)
            size, starts = _vector_accesses(len(values), element, space)
            base, items = _row_pointer(builder, args, len(values), element, space), numba.cgutils.unpack_tuple(builder, args[2])
            for j in starts:
                pointer = builder.gep(base, [INT64(j)])
                if size == 1:
                    builder.store(items[j], pointer)
                    continue
                vector = ir.Constant(ir.VectorType(element, size), ir.Undefined)
                for k in range(size):
                    vector = builder.insert_element(vector, items[j + k], INT32(k))
                builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer(space)), align=4 * size)

        return numba.types.void(address, index, values), codegen

    return store_row


def _make_store_row_streaming(numba: NumbaApi) -> DeviceFunction:
    space = numba.address_space

    @numba.intrinsic
    def store_row_streaming(typingctx: TypingContext, address: NumbaType, index: NumbaType, values: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            element = context.get_data_type(values.dtype)
            size, starts = _vector_accesses(len(values), element, space)
            base, items = _row_pointer(builder, args, len(values), element, space), numba.cgutils.unpack_tuple(builder, args[2])
            for j in starts:
                store_evict_first(builder, builder.gep(base, [INT64(j)]), items[j : j + size])

        return numba.types.void(address, index, values), codegen

    return store_row_streaming


def _make_load_column(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def load_column(
        typingctx: TypingContext, address: NumbaType, start: NumbaType, stride: NumbaType, like: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            pointers = _column_pointers(builder, args, len(like), numba.address_space)
            return context.make_tuple(builder, sig.return_type, [builder.load(pointer) for pointer in pointers])

        return numba.types.UniTuple(numba.types.float32, len(like))(address, start, stride, like), codegen

    return load_column


def _make_store_column(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def store_column(
        typingctx: TypingContext, address: NumbaType, start: NumbaType, stride: NumbaType, values: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            items = numba.cgutils.unpack_tuple(builder, args[3])
            for pointer, value in zip(_column_pointers(builder, args, len(items), numba.address_space), items, strict=True):
                builder.store(value, pointer)

        floats = numba.types.UniTuple(numba.types.float32, len(values))
        return numba.types.void(address, start, stride, floats), codegen

    return store_column


def _make_to_floats(numba: NumbaApi) -> DeviceFunction:
    float32 = numba.types.float32

    @numba.intrinsic
    def to_floats(typingctx: TypingContext, values: NumbaType, like: NumbaType) -> Intrinsic:
        if not hasattr(values, "types") or len(values) < len(like):
            raise TypeError(f"the environment's space has {len(like)} features, and its function gives {values}")

        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            source_types = [getattr(kind, "literal_type", kind) for kind in sig.args[0].types]
            numbers = zip(source_types[: len(like)], numba.cgutils.unpack_tuple(builder, args[0]), strict=False)
            floats = [context.cast(builder, number, source_type, float32) for source_type, number in numbers]
            return context.make_tuple(builder, sig.return_type, floats)

        return numba.types.UniTuple(float32, len(like))(values, like), codegen

    return to_floats


def _make_atomic_min(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def atomic_min(typingctx: TypingContext, address: NumbaType, index: NumbaType, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            pointer = element_pointer(builder, args[0], args[1], INT64, numba.address_space)
            builder.atomic_rmw("umin", pointer, args[2], "monotonic")

        return numba.types.void(address, index, numba.types.uint64), codegen

    return atomic_min


def _make_atomic_add(numba: NumbaApi) -> DeviceFunction:
    @numba.intrinsic
    def atomic_add(typingctx: TypingContext, address: NumbaType, index: NumbaType, increment: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            pointer = element_pointer(builder, args[0], args[1], INT32, numba.address_space)
            builder.atomic_rmw("add", pointer, args[2], "monotonic")

        return numba.types.void(address, index, numba.types.uint32), codegen

    return atomic_add
