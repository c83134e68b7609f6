"""Reads and writes of rows and columns of a buffer in kernel code, as tuples."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from gpuvec.engine.compiler.llvm import FLOAT, INT32, INT64, element_pointer, store_evict_first, to_int64
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def _row_pointer(builder: ir.IRBuilder, args: Sequence[ir.Value], width: int, element_type: ir.Type, space: int) -> ir.Value:
    """Returns a pointer to row `args[1]` of the buffer at address `args[0]`, whose rows have `width` elements."""
    index = to_int64(builder, args[1])
    return element_pointer(builder, args[0], builder.mul(index, INT64(width)), element_type, space)


def _column_pointers(builder: ir.IRBuilder, args: Sequence[ir.Value], width: int, space: int) -> list[ir.Value]:
    """Returns pointers to `width` float32 elements of the buffer at `args[0]`: `args[1]` is the first, `args[2]` the stride."""
    base, stride = element_pointer(builder, args[0], args[1], FLOAT, space), to_int64(builder, args[2])
    return [builder.gep(base, [builder.mul(stride, INT64(j))]) for j in range(width)]


def _vector_accesses(width: int, element_type: ir.Type, space: int) -> tuple[int, range]:
    """Returns (elements of one access, index of the first element of each access) for a row of `width` elements.

    A GPU accesses 16 or 8 bytes at once if all rows keep that alignment. A CPU accesses single elements, because its compiler
    vectorises over several rows.
    """
    is_vectorised = space and str(element_type) in ("float", "i32")
    vector_size = next(k for k in (4, 2, 1) if width % k == 0) if is_vectorised else 1
    return vector_size, range(0, width, vector_size)


def make_load_row(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.load_row` to `numba`."""
    space = numba.address_space

    @numba.intrinsic
    def load_row(typingctx: TypingContext, address: NumbaType, index: NumbaType, like: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            element_type = context.get_data_type(like.dtype)
            vector_size, starts = _vector_accesses(len(like), element_type, space)
            base, values = _row_pointer(builder, args, len(like), element_type, space), []
            for j in starts:
                pointer = builder.gep(base, [INT64(j)])
                if vector_size == 1:
                    values.append(builder.load(pointer))
                    continue
                vector_type = ir.VectorType(element_type, vector_size)
                vector = builder.load(builder.bitcast(pointer, vector_type.as_pointer(space)), align=4 * vector_size)
                values += [builder.extract_element(vector, INT32(k)) for k in range(vector_size)]
            return context.make_tuple(builder, sig.return_type, values)

        return numba.types.UniTuple(like.dtype, len(like))(address, index, like), codegen

    return load_row


def make_store_row(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.store_row` to `numba`."""
    space = numba.address_space

    @numba.intrinsic
    def store_row(typingctx: TypingContext, address: NumbaType, index: NumbaType, values: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            element_type = context.get_data_type(values.dtype)
            vector_size, starts = _vector_accesses(len(values), element_type, space)
            base = _row_pointer(builder, args, len(values), element_type, space)
            elements = numba.cgutils.unpack_tuple(builder, args[2])
            for j in starts:
                pointer = builder.gep(base, [INT64(j)])
                if vector_size == 1:
                    builder.store(elements[j], pointer)
                    continue
                vector = ir.Constant(ir.VectorType(element_type, vector_size), ir.Undefined)
                for k in range(vector_size):
                    vector = builder.insert_element(vector, elements[j + k], INT32(k))
                builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer(space)), align=4 * vector_size)

        return numba.types.void(address, index, values), codegen

    return store_row


def make_store_row_streaming(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.store_row_streaming` to `numba`."""
    space = numba.address_space

    @numba.intrinsic
    def store_row_streaming(typingctx: TypingContext, address: NumbaType, index: NumbaType, values: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            element_type = context.get_data_type(values.dtype)
            vector_size, starts = _vector_accesses(len(values), element_type, space)
            base = _row_pointer(builder, args, len(values), element_type, space)
            elements = numba.cgutils.unpack_tuple(builder, args[2])
            for j in starts:
                store_evict_first(builder, builder.gep(base, [INT64(j)]), elements[j : j + vector_size])

        return numba.types.void(address, index, values), codegen

    return store_row_streaming


def make_load_column(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.load_column` to `numba`."""

    @numba.intrinsic
    def load_column(
        typingctx: TypingContext, address: NumbaType, start: NumbaType, stride: NumbaType, like: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            pointers = _column_pointers(builder, args, len(like), numba.address_space)
            return context.make_tuple(builder, sig.return_type, [builder.load(pointer) for pointer in pointers])

        return numba.types.UniTuple(numba.types.float32, len(like))(address, start, stride, like), codegen

    return load_column


def make_store_column(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.store_column` to `numba`."""

    @numba.intrinsic
    def store_column(
        typingctx: TypingContext, address: NumbaType, start: NumbaType, stride: NumbaType, values: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            elements = numba.cgutils.unpack_tuple(builder, args[3])
            pointers = _column_pointers(builder, args, len(elements), numba.address_space)
            for pointer, value in zip(pointers, elements, strict=True):
                builder.store(value, pointer)

        floats = numba.types.UniTuple(numba.types.float32, len(values))
        return numba.types.void(address, start, stride, floats), codegen

    return store_column


def make_to_floats(numba: NumbaApi) -> DeviceFunction:
    """Declares `MemoryOps.to_floats` to `numba`."""
    float32 = numba.types.float32

    @numba.intrinsic
    def to_floats(typingctx: TypingContext, values: NumbaType, like: NumbaType) -> Intrinsic:
        if not hasattr(values, "types") or len(values) < len(like):
            raise TypeError(f"the environment's space has {len(like)} features, and its function returns {values}")

        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            source_types = [getattr(number_type, "literal_type", number_type) for number_type in sig.args[0].types]
            numbers = zip(source_types[: len(like)], numba.cgutils.unpack_tuple(builder, args[0]), strict=False)
            floats = [context.cast(builder, number, source_type, float32) for source_type, number in numbers]
            return context.make_tuple(builder, sig.return_type, floats)

        return numba.types.UniTuple(float32, len(like))(values, like), codegen

    return to_floats
