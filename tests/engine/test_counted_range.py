"""`range` in compiled code gives the numbers of Python, and on a GPU the indices that are not negative need no sign test."""

import re
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError

from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.compiler.array_ops import cpu_array_ops
from gpuvec.engine.compiler.diagnostics import explain_compiler_errors
from gpuvec.engine.compiler.functions import device_function
from gpuvec.errors import AuthoringError

NUM_AGENTS = 110
assume_below, view = cpu_array_ops().assume_below(NUM_AGENTS), cpu_array_ops().view((NUM_AGENTS,))


def run_loops(first, last, step):
    """A hash that depends on the order of the numbers of several loops, and the attributes of a range."""
    total, completed, n = 1, 0, -1
    for n in range(last):
        if n == 7:
            break
        for j in range(first, n):
            if j % 3 == 0:
                continue
            total = (31 * total + 10 * n + j) % 1_000_003
    else:
        completed = 1
    for n in range(last, first, step):
        total = (31 * total + n) % 1_000_003
        n += 2  # noqa: PLW2901  # must not change the loop
    numbers = range(first, last)
    return total, completed, n, len(numbers), 3 in numbers, numbers.start, numbers.stop, numbers.step


def compiled(function):
    """A function that calls the device function from Python."""
    device_code = device_function(function)

    @njit
    def call(*args):
        return device_code(*args)

    return call


compiled_loops = compiled(run_loops)
INTEGERS = st.integers(-12, 12)
TYPES = st.sampled_from([int, np.int32, np.int8])


@settings(deadline=None)  # the first number of each type compiles
@given(INTEGERS, INTEGERS, INTEGERS.filter(bool), TYPES, TYPES)
@example(3, 3, 1, int, int)
@example(0, 9, -1, np.int32, np.int32)
def test_loops_run_as_in_python(first, last, step, first_type, last_type):
    arguments = first_type(first), last_type(last), step
    assert compiled_loops(*arguments) == run_loops(*map(int, arguments))


def fold(first, last):
    total = 0
    for k in range(first, last):
        total = total * 7 + k
    return total


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 9), (9, 3)])
def test_unsigned_bounds_give_the_numbers_of_python(first, last):
    assert compiled(fold)(np.uint64(first), np.uint64(last)) == fold(first, last)


def count_iterations(first, last):
    count = 0
    for _ in range(first, last):
        count += 1
    return count


def test_bounds_at_the_limits_of_int64():
    count, end = compiled(count_iterations), 2**63 - 1
    assert count(end - 3, end) == 3
    assert count(-end - 1, -end + 1) == 2


def test_range_that_the_module_redefines_is_refused():
    scope = {"range": lambda n: n + 3}
    exec("def f(n):\n    return range(n)", scope)
    f = compiled(scope["f"])
    with pytest.raises(TypingError, match="Modified builtin 'range'"):
        f(4)


class Sensor(NamedTuple):
    range: int


def sum_below_range(sensor):
    total = 0
    for k in range(sensor.range):
        total += k
    return total


def test_field_may_have_the_name_range():
    assert compiled(sum_below_range)(Sensor(4)) == 6


def loop_to_float():
    total = 0
    for k in range(2.5):
        total += k
    return total


def test_float_bound_is_refused():
    call = compiled(loop_to_float)
    line = r"test_counted_range.py, line \d+, `for k in range\(2.5\):`: there is no .*range.*\(float32"
    with pytest.raises(AuthoringError, match=line), explain_compiler_errors(loop_to_float):
        call()


def sum_indexed(x, index, first, last):
    total = x[0]
    for k in range(first, last):
        total += x[index[k]]
    return total


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_assume_below_does_not_change_elements(dtype):
    index = np.random.default_rng(0).permutation(NUM_AGENTS).astype(dtype)
    x, f = np.arange(NUM_AGENTS, dtype=np.float32), device_function(sum_indexed)

    @njit
    def call(x, index_address, first, last):
        bounded = assume_below(view(index_address, 0, dtype))
        return f(x, bounded, first, last), bounded[-1], bounded[1:3][1], len(bounded)

    total, last, third, count = call(x, index.ctypes.data, 3, 9)
    assert total == x[0] + x[index[3:9]].sum()
    assert (last, third, count) == (index[-1], index[2], NUM_AGENTS)


def test_each_bound_of_assume_below_is_compiled_separately():
    """With the assumption of the smaller bound, the compiler removes the comparison."""

    def make_comparison(bound):
        with_bound, view_of_one = cpu_array_ops().assume_below(bound), cpu_array_ops().view((1,))

        @njit
        def is_above_3(address):
            return with_bound(view_of_one(address, 0, np.int32))[0] > 3

        return is_above_3

    four = np.full(1, 4, np.int32)
    assert not make_comparison(3)(np.zeros(1, np.int32).ctypes.data)
    assert make_comparison(5)(four.ctypes.data)


@pytest.mark.compile
@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels")
def test_gpu_loop_does_not_test_the_sign_of_nonnegative_indices():
    from numba.cuda import types

    f, array_ops = device_function(sum_indexed), numba_cuda.cuda_array_ops()
    assume_below_on_gpu, indices = array_ops.assume_below(NUM_AGENTS), array_ops.subarray((NUM_AGENTS,))

    def kernel(x, index, out):
        out[0] = f(x, assume_below_on_gpu(indices(index, 0)), 10, NUM_AGENTS)

    def with_signs(x, index, out):
        total = x[0]
        for k in range(10, NUM_AGENTS):
            total += x[index[k]]
        out[0] = total

    argument_types = types.float32[::1], types.int32[::1], types.float32[::1]

    def sign_instructions(body):
        """How many selects and shifts test a sign; the compiler unrolls the loop, so there may be several."""
        ptx = numba_cuda.compile_kernel(body, types.void(*argument_types), (9, 0), "ptx")
        return len(re.findall(r"^\s*(?:selp|shr\.s|and\.b64|setp\.lt\.s)", ptx, re.MULTILINE))

    assert sign_instructions(kernel) == 0
    assert sign_instructions(with_signs) > 0
