"""Arrays of a constant shape, which functions receive as one pointer, behave as NumPy's arrays."""

import re
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.compiler.array_ops import cpu_array_ops
from gpuvec.engine.compiler.functions import device_function

SHAPE = (3, 4, 2)
SIZE = 24
view, subarray = cpu_array_ops().view, cpu_array_ops().subarray


def read(a):
    """A tuple of what all kinds of reads return, in Python and in compiled code."""
    total = 0
    for row in a:
        total = 10 * total + int(row[1, 1])
    i, part = np.int32(2), a[1:, 2]
    elements = a[1, 2, 0], a[-1, -2, -1], a[i, np.uint8(3), np.int64(-1)], a[(0, 1, 1)], a[2][1, 0], part[-1, 1]
    return elements, total, len(a), a.shape[1], a.size


def write(a):
    """All kinds of writes."""
    a[0, 1, 1] = 40
    a[-1, np.uint32(2), -2] += 7
    a[1][3, 0] = a[1, 3, 1]
    a[0, 3, :] = 5


class Arrays(NamedTuple):
    """Two arrays of different shapes."""

    large: object
    small: object


def choose(s, is_large):
    """One of two arrays: a variable of one type."""
    a = s.large if is_large else s.small
    return a[-1]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.uint8, np.bool_])
def test_reads_and_writes_are_those_of_numpy(dtype):
    memory = (np.arange(2 * SIZE) * 11 % 125).astype(dtype)
    expected = memory.reshape(2, *SHAPE).copy()
    view_of_shape, compiled_read, compiled_write = view(SHAPE), device_function(read), device_function(write)

    @njit
    def call(address):
        a = view_of_shape(address, 1, dtype)
        before = compiled_read(a)
        compiled_write(a)
        return before

    assert call(memory.ctypes.data) == read(expected[1])
    write(expected[1])
    np.testing.assert_array_equal(memory, expected.ravel())


def test_arrays_of_two_shapes_unite_in_one_variable():
    memory, f = np.arange(7, dtype=np.float32), device_function(choose)
    large, small = subarray((5,)), subarray((2,))

    @njit
    def call(a, is_large):
        return f(Arrays(large(a, 0), small(a, 5)), is_large)

    assert (call(memory, True), call(memory, False)) == (4.0, 6.0)


def test_part_of_a_constant_table_is_read_only():
    table, part = np.arange(6.0, dtype=np.float32), subarray((2, 2))
    table.flags.writeable = False

    @njit
    def read_part():
        return part(table, 2)[1, 0]

    @njit
    def write_part():
        part(table, 2)[1, 0] = 3.0

    assert read_part() == 4.0
    with pytest.raises(TypingError, match="Cannot modify readonly array"):
        write_part()


def test_array_is_one_pointer_without_a_count_of_references():
    view_of_shape = view(SHAPE)

    def use(a):
        return a[1, 2, 0]

    f = device_function(use)

    @njit
    def call(address):
        return f(view_of_shape(address, 0, np.float32))

    call.compile("float32(int64)")
    (overload,) = f.overloads.values()
    text = str(overload.library._final_module)
    assert "NRT_" not in text
    (signature,) = (line for line in text.splitlines() if line.startswith("define"))
    assert len(re.findall(r"\bptr\b", signature)) == 3  # the result, the exception and the array


@pytest.mark.compile
@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels")
def test_reads_and_writes_compile_for_a_gpu():
    from numba.cuda import types

    shape, compiled_read, compiled_write = (
        numba_cuda.cuda_array_ops().view(SHAPE),
        device_function(read),
        device_function(write),
    )

    def kernel(address):
        a = shape(address, 0, np.float32)
        a[0, 0, 0] = compiled_read(a)[0][0]
        compiled_write(a)

    assert ".entry" in numba_cuda.compile_kernel(kernel, types.void(types.uint64), (9, 0), "ptx")
