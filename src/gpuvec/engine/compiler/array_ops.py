"""The compiled operations on arrays and integers that the kernels of multi-agent environments call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from gpuvec.engine.compiler.array_stores import (
    make_atomic_exchange,
    make_copy_float4,
    make_fetch_add,
    make_scatter_strided,
    make_store_flat,
    make_store_strided,
)
from gpuvec.engine.compiler.array_views import make_assume_below, make_numba_array, make_subarray, make_view
from gpuvec.engine.compiler.atomic_updates import make_atomic_update, make_compare_exchange
from gpuvec.engine.compiler.block_copies import make_block_copies
from gpuvec.engine.compiler.copy_types import BlockCopy, CopyLaunch
from gpuvec.engine.compiler.integer_ops import (
    make_add_nonnegative,
    make_assume_nonnegative,
    make_divmod_i32,
    make_divmod_u32,
    make_pack_bytes,
)
from gpuvec.engine.compiler.numba_api import NumbaApi, cpu_numba
from gpuvec.engine.compiler.sort_keys import make_merge_k_smallest, make_ordered_bits, make_pack_key
from gpuvec.engine.compiler.types import DeviceFunction


class ArrayOps(NamedTuple):
    """Compiled operations in addition to those of `memory_ops.MemoryOps`.

    A buffer is the address of an array in global memory; an array is one that Numba knows, in shared or local memory.

    Attributes:
        view: `view(shape)(buffer, index, dtype)` returns the C-contiguous array of that shape which is number `index` of those
            that the buffer contains one after the other. The shape is a constant (see `static_arrays`).
        subarray: `subarray(shape)(array, start)` returns the C-contiguous array of that shape which begins at element `start`
            of a contiguous array.
        numba_array: `numba_array(array)` returns Numba's own array with the elements of an array of constant shape.
        assume_below: `assume_below(n)(array)` returns the array of integers, whose elements the compiler then knows to be in
            [0, n).
        assume_nonnegative: `assume_nonnegative(x)` returns `x` as an int64 that the compiler knows not to be negative, so that
            an index needs no test of its sign.
        add_nonnegative: `add_nonnegative(x, n)` returns `x + n` for a literal `n` as an int64 that the compiler knows not to
            be negative and not to wrap.
        divmod_u32: `divmod_u32(x, n)` returns `(x // n, x % n)` as int64, for numbers in [0, 2**32). Where `n` is a constant,
            the compiler replaces the division by a multiplication.
        divmod_i32: `divmod_i32(x, n)` returns `(x // n, x % n)` as int32 that the compiler knows not to be negative, for
            numbers in [0, 2**31) and a constant `n`. A comparison with an int32 of a state then takes one instruction.
        pack_bytes: `pack_bytes(values)` returns the uint16 or uint32 whose bytes are these two or four numbers as uint8, the
            first one the lowest.
        scatter_strided: `scatter_strided(buffer, start, stride, values)` writes `float32(values[f])` to element
            `start + f * stride` of a buffer, with streaming stores.
        store_strided: `store_strided(array, start, stride, values)` writes `float32(values[f])` to element
            `start + f * stride` of an array.
        copy_float4: `copy_float4(buffer, index, array, start)` copies four float32 from an array to a buffer with a streaming
            store. Both places are aligned to 16 bytes.
        block_copies: `block_copies(copies, launch)(b, w, e0, m, thread, store)` runs copies between buffers of the batch `b`
            and arrays of the work `w` (see `copy_types`), for the `m` envs of a block from `e0` on. For copies without an
            array, `store(w, x, value)` stores word x of the block; for others, `store` is None.
        ordered_bits: `ordered_bits(x)` returns a uint32; these have the same order as the float32 `x`.
        pack_key: `pack_key(x, low_mask, n)` returns the bits of the float32 `x` as an int32, in which `n` replaces the bits of
            `low_mask`. Keys have the same order as `x` where `x` is not negative.
        atomic_exchange: `atomic_exchange(array, index, value)` writes an int32 of a one-dimensional array and returns the old
            value.
        fetch_add: `fetch_add(array, index)` adds 1 to an int32 of a one-dimensional array and returns the old value.
        atomic_update: `atomic_update(kind)` returns `update(array, index, value)`, which adds `value` to element `index` of a
            contiguous array of any shape, elements in C order, or with "min" or "max" replaces the element by the smaller or
            larger of both. Elements are int32, for extrema also float32 without -0.0; NaN must not be passed.
        store_flat: `store_flat(array, index, value)` writes element `index` of a contiguous array of any shape, in C order.
        compare_exchange: `compare_exchange(array, index, expected, value)` writes an int32 of a contiguous array of any shape
            if it is `expected`, and returns the old value.
        merge_k_smallest: `merge_k_smallest(smallest, candidates)` returns the `len(smallest)` smallest int32 of both tuples in
            ascending order. `smallest` must be in ascending order.
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


def make_array_ops(numba: NumbaApi) -> ArrayOps:
    """Declares all operations to `numba`, Numba or numba-cuda."""
    return ArrayOps(
        view=make_view(numba),
        subarray=make_subarray(numba),
        numba_array=make_numba_array(numba),
        assume_below=make_assume_below(numba),
        assume_nonnegative=make_assume_nonnegative(numba),
        add_nonnegative=make_add_nonnegative(numba),
        divmod_u32=make_divmod_u32(numba),
        divmod_i32=make_divmod_i32(numba),
        pack_bytes=make_pack_bytes(numba),
        scatter_strided=make_scatter_strided(numba),
        store_strided=make_store_strided(numba),
        copy_float4=make_copy_float4(numba),
        block_copies=make_block_copies(numba),
        ordered_bits=make_ordered_bits(numba),
        pack_key=make_pack_key(numba),
        atomic_exchange=make_atomic_exchange(numba),
        fetch_add=make_fetch_add(numba),
        atomic_update=make_atomic_update(numba),
        compare_exchange=make_compare_exchange(numba),
        store_flat=make_store_flat(numba),
        merge_k_smallest=make_merge_k_smallest(numba),
    )


@cache
def cpu_array_ops() -> ArrayOps:
    """The operations on the CPU's memory."""
    return make_array_ops(cpu_numba())
