"""The compiled operations with which kernel code reads and writes buffers, by address and index, on the CPU and on a GPU.

Kernels take plain addresses because they are cheap to pass: an array takes 7 to 9 kernel arguments, and on a CPU a reference
count at each use. By its address a row can also be accessed with 16-byte instructions.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from gpuvec.engine.compiler.element_access import (
    make_atomic_add,
    make_atomic_min,
    make_load,
    make_store,
    make_store_streaming,
)
from gpuvec.engine.compiler.numba_api import NumbaApi, cpu_numba
from gpuvec.engine.compiler.row_access import (
    make_load_column,
    make_load_row,
    make_store_column,
    make_store_row,
    make_store_row_streaming,
    make_to_floats,
)
from gpuvec.engine.compiler.types import DeviceFunction, DType, Row


class MemoryOps(NamedTuple):
    """Compiled operations on buffers. The index of an element counts elements, the index of a row counts rows.

    Attributes:
        load: `load(buffer, index, dtype)` returns an element.
        store: `store(buffer, index, value, dtype)` writes an element.
        load_row: `load_row(buffer, index, like)` returns a row, a tuple of `len(like)` elements of `like`'s type.
        store_row: `store_row(buffer, index, values)` writes a row, a tuple of elements of one type.
        store_streaming: as `store`, for an element that no kernel reads again: a GPU's cache evicts it first.
        store_row_streaming: as `store_row`, for a row that no kernel reads again.
        atomic_min: `atomic_min(buffer, index, value)` replaces a uint64 by `value` if that is less.
        atomic_add: `atomic_add(buffer, index, increment)` adds to a uint32. It returns nothing, so the thread does not wait.
        any_in_sector: `any_in_sector(flag)` returns whether `flag` is true for this env or for the one whose 16-byte row is in
            the same 32-byte sector of memory as this env's row.
        load_column: `load_column(buffer, start, stride, like)` returns `len(like)` float32 elements that are `stride` apart.
        store_column: `store_column(buffer, start, stride, values)` writes float32 elements that are `stride` apart.
        to_floats: `to_floats(values, like)` returns the first `len(like)` numbers of a tuple as float32.
        load_streaming: as `load`, for an element that is read once: a GPU's cache evicts it first.
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


def make_memory_ops(numba: NumbaApi, any_in_sector: DeviceFunction) -> MemoryOps:
    """Declares all operations.

    Args:
        numba: the modules of Numba, or of numba-cuda, that intrinsics are declared with.
        any_in_sector: the device's implementation; see `MemoryOps`.
    """
    store, store_row = make_store(numba), make_store_row(numba)
    return MemoryOps(
        load=make_load(numba, streaming=False),
        store=store,
        load_row=make_load_row(numba),
        store_row=store_row,
        store_streaming=make_store_streaming(numba) if numba.is_gpu else store,
        store_row_streaming=make_store_row_streaming(numba) if numba.is_gpu else store_row,
        atomic_min=make_atomic_min(numba),
        atomic_add=make_atomic_add(numba),
        any_in_sector=any_in_sector,
        load_column=make_load_column(numba),
        store_column=make_store_column(numba),
        to_floats=make_to_floats(numba),
        load_streaming=make_load(numba, streaming=True),
    )


@cache  # Numba never frees an intrinsic.
def cpu_memory_ops() -> MemoryOps:
    """The operations on the CPU's memory, where no env shares a cache sector with another."""
    from numba import njit

    @njit
    def any_in_sector(flag: bool) -> bool:
        return flag

    return make_memory_ops(cpu_numba(), any_in_sector)
