"""The compiled operations with which kernel code reads and writes buffers, by address and index, on the CPU and on a GPU.

Kernels take plain addresses because they are cheap to pass: an array takes 7 to 9 kernel arguments, and on a CPU a reference
count at each use. By its address a row can also be accessed with 16-byte instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from llvmlite import ir

from gpuvec.engine.compiler.llvm import (
    FLOAT,
    INT32,
    INT64,
    Args,
    Builder,
    element_pointer,
    load_evict_first,
    store_evict_first,
    to_int64,
)
from gpuvec.engine.compiler.numba_api import NumbaApi, Operations, cpu_numba
from gpuvec.engine.compiler.types import DeviceFunction, DType, NumbaModule, NumbaType, Row, Signature, TargetContext


class MemoryOps(NamedTuple):
    """Compiled operations on buffers. The index of an element counts elements, the index of a row counts rows.

    Operations that are not among the attributes are described at the functions of the same names in this module.

    Attributes:
        any_in_sector: `any_in_sector(flag)` returns whether `flag` is true for this env or for the one whose 16-byte row is in
            the same 32-byte sector of memory as this env's row.
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
    """Returns a tuple of `width` zeros of `dtype`: the argument `like` of `load_row` and `to_floats`."""
    return (dtype(0),) * width


operations = Operations()


def make_memory_ops(numba: NumbaApi, any_in_sector: DeviceFunction) -> MemoryOps:
    """Declares all operations.

    Args:
        numba: the modules of Numba, or of numba-cuda, that intrinsics are declared with.
        any_in_sector: the device's implementation; see `MemoryOps`.
    """
    declared = operations.declare(numba)
    if not numba.is_gpu:
        declared |= {f"{name}_streaming": declared[name] for name in ("load", "store", "store_row")}
    return MemoryOps(any_in_sector=any_in_sector, **declared)


def _floats_type(types: NumbaModule, values: NumbaType, like: NumbaType) -> Signature:
    if not hasattr(values, "types") or len(values) < len(like):
        raise TypeError(f"the environment's space has {len(like)} features, and its function returns {values}")
    return types.UniTuple(types.float32, len(like))(values, like)


def _load_type(types: NumbaModule, address: NumbaType, index: NumbaType, dtype: NumbaType) -> Signature:
    return dtype.dtype(address, index, dtype)


def _store_type(types: NumbaModule, address: NumbaType, index: NumbaType, value: NumbaType, dtype: NumbaType) -> Signature:
    return types.void(address, index, value, dtype)


def _store_row_type(types: NumbaModule, address: NumbaType, index: NumbaType, values: NumbaType) -> Signature:
    return types.void(address, index, values)


@operations.add(_load_type)
def load(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`load(buffer, index, dtype)` returns an element."""
    model = context.data_model_manager[sig.return_type]
    return model.from_data(builder, builder.load(_element(numba, builder, args, model.get_data_type())))


@operations.add(_load_type)
def load_streaming(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """As `load`, for an element that is read once: a GPU's cache evicts it first."""
    model = context.data_model_manager[sig.return_type]
    return model.from_data(builder, load_evict_first(builder, _element(numba, builder, args, model.get_data_type())))


def _element(numba: NumbaApi, builder: Builder, args: Args, element_type: ir.Type) -> ir.Value:
    """Returns a pointer to element `args[1]` of the buffer at address `args[0]`."""
    return element_pointer(builder, args[0], args[1], element_type, numba.address_space)


def _element_to_store(
    numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args
) -> tuple[ir.Value, ir.Value]:
    """Returns (value as `dtype`, pointer) for the arguments of `store(address, index, value, dtype)`."""
    dtype = sig.args[3].dtype
    model = context.data_model_manager[dtype]
    value = model.as_data(builder, context.cast(builder, args[2], sig.args[2], dtype))
    return value, _element(numba, builder, args, model.get_data_type())


@operations.add(_store_type)
def store(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`store(buffer, index, value, dtype)` writes an element."""
    builder.store(*_element_to_store(numba, context, builder, sig, args))


@operations.add(_store_type)
def store_streaming(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """As `store`, for an element that no kernel reads again: a GPU's cache evicts it first."""
    element, pointer = _element_to_store(numba, context, builder, sig, args)
    store_evict_first(builder, pointer, [element])


@operations.add(lambda types, address, index, value: types.void(address, index, types.uint64))
def atomic_min(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`atomic_min(buffer, index, value)` replaces a uint64 by `value` if that is less."""
    builder.atomic_rmw("umin", _element(numba, builder, args, INT64), args[2], "monotonic")


@operations.add(lambda types, address, index, increment: types.void(address, index, types.uint32))
def atomic_add(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`atomic_add(buffer, index, increment)` adds to a uint32. It returns nothing, so the thread does not wait."""
    builder.atomic_rmw("add", _element(numba, builder, args, INT32), args[2], "monotonic")


def _row_accesses(
    numba: NumbaApi, context: TargetContext, builder: Builder, args: Args, row: NumbaType
) -> tuple[ir.Type, int, Iterator[tuple[int, ir.Value]]]:
    """Returns (type of an access, its size, (index, pointer) of the first element of each access) for row `args[1]`.

    A GPU accesses 16 or 8 bytes at once if all rows keep that alignment. A CPU accesses single elements, because its compiler
    vectorises over several rows. The buffer of the rows, which are tuples of the type `row`, is at address `args[0]`.
    """
    element_type, width, space = context.get_data_type(row.dtype), len(row), numba.address_space
    is_vectorised = space and str(element_type) in ("float", "i32")
    size = next(k for k in (4, 2, 1) if width % k == 0) if is_vectorised else 1
    first = builder.mul(to_int64(builder, args[1]), INT64(width))
    base = element_pointer(builder, args[0], first, element_type, space)
    pointers = ((j, builder.gep(base, [INT64(j)])) for j in range(0, width, size))
    return ir.VectorType(element_type, size), size, pointers


@operations.add(lambda types, address, index, like: types.UniTuple(like.dtype, len(like))(address, index, like))
def load_row(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`load_row(buffer, index, like)` returns a row, a tuple of `len(like)` elements of `like`'s type."""
    vector_type, size, pointers = _row_accesses(numba, context, builder, args, sig.return_type)
    values = []
    for _, pointer in pointers:
        if size == 1:
            values.append(builder.load(pointer))
            continue
        vector = builder.load(builder.bitcast(pointer, vector_type.as_pointer(numba.address_space)), align=4 * size)
        values += [builder.extract_element(vector, INT32(k)) for k in range(size)]
    return context.make_tuple(builder, sig.return_type, values)


@operations.add(_store_row_type)
def store_row(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`store_row(buffer, index, values)` writes a row, a tuple of elements of one type."""
    vector_type, size, pointers = _row_accesses(numba, context, builder, args, sig.args[2])
    elements = numba.cgutils.unpack_tuple(builder, args[2])
    for j, pointer in pointers:
        if size == 1:
            builder.store(elements[j], pointer)
            continue
        vector = ir.Constant(vector_type, ir.Undefined)
        for k in range(size):
            vector = builder.insert_element(vector, elements[j + k], INT32(k))
        builder.store(vector, builder.bitcast(pointer, vector_type.as_pointer(numba.address_space)), align=4 * size)


@operations.add(_store_row_type)
def store_row_streaming(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """As `store_row`, for a row that no kernel reads again."""
    _, size, pointers = _row_accesses(numba, context, builder, args, sig.args[2])
    elements = numba.cgutils.unpack_tuple(builder, args[2])
    for j, pointer in pointers:
        store_evict_first(builder, pointer, elements[j : j + size])


def _column_pointers(numba: NumbaApi, builder: Builder, args: Args, width: int) -> list[ir.Value]:
    """Returns pointers to `width` float32 elements of the buffer at `args[0]`: `args[1]` is the first, `args[2]` the stride."""
    base, stride = _element(numba, builder, args, FLOAT), to_int64(builder, args[2])
    return [builder.gep(base, [builder.mul(stride, INT64(j))]) for j in range(width)]


@operations.add(
    lambda types, address, start, stride, like: types.UniTuple(types.float32, len(like))(address, start, stride, like)
)
def load_column(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`load_column(buffer, start, stride, like)` returns `len(like)` float32 elements that are `stride` apart."""
    pointers = _column_pointers(numba, builder, args, len(sig.return_type))
    return context.make_tuple(builder, sig.return_type, [builder.load(pointer) for pointer in pointers])


@operations.add(
    lambda types, address, start, stride, values: types.void(address, start, stride, types.UniTuple(types.float32, len(values)))
)
def store_column(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
    """`store_column(buffer, start, stride, values)` writes float32 elements that are `stride` apart."""
    elements = numba.cgutils.unpack_tuple(builder, args[3])
    for pointer, value in zip(_column_pointers(numba, builder, args, len(elements)), elements, strict=True):
        builder.store(value, pointer)


@operations.add(_floats_type)
def to_floats(numba: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
    """`to_floats(values, like)` returns the first `len(like)` numbers of a tuple as float32."""
    source_types = [getattr(number_type, "literal_type", number_type) for number_type in sig.args[0].types]
    numbers = zip(source_types, numba.cgutils.unpack_tuple(builder, args[0]), range(len(sig.return_type)), strict=False)
    floats = [context.cast(builder, number, source_type, numba.types.float32) for source_type, number, _ in numbers]
    return context.make_tuple(builder, sig.return_type, floats)


@cache  # Numba never frees an intrinsic.
def cpu_memory_ops() -> MemoryOps:
    """The operations on the CPU's memory, where no env shares a cache sector with another."""
    from numba import njit

    @njit
    def any_in_sector(flag: bool) -> bool:
        return flag

    return make_memory_ops(cpu_numba(), any_in_sector)
