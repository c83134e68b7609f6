"""`range` in compiled code: Python's numbers, and on a GPU a loop that does not look at what cannot be negative."""

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

AGENTS = 110
assume_below, view = cpu_array_ops().assume_below(AGENTS), cpu_array_ops().view


def walk(first, last, step):
    """What a loop meets, in an order that tells."""
    total, found, n = 1, 0, -1
    for n in range(last):
        if n == 7:
            break
        for j in range(first, n):
            if j % 3 == 0:
                continue
            total = (31 * total + 10 * n + j) % 1_000_003
    else:
        found = 1
    for n in range(last, first, step):
        total = (31 * total + n) % 1_000_003
        n += 2  # noqa: PLW2901  # which the loop is not to notice
    several = range(first, last)
    return total, found, n, len(several), 3 in several, several.start, several.stop, several.step


def compiled(function):
    """Device code as Python can call it."""
    made = device_function(function)

    @njit
    def call(*args):
        return made(*args)

    return call


walked = compiled(walk)
INTEGERS = st.integers(-12, 12)
KINDS = st.sampled_from([int, np.int32, np.int8])


@settings(deadline=None)  # a kind of number that is new is compiled for
@given(INTEGERS, INTEGERS, INTEGERS.filter(bool), KINDS, KINDS)
@example(3, 3, 1, int, int)
@example(0, 9, -1, np.int32, np.int32)
def test_a_loop_meets_what_it_meets_in_python(first, last, step, kind, other):
    given = kind(first), other(last), step
    assert walked(*given) == walk(*map(int, given))


def fold(first, last):
    total = 0
    for k in range(first, last):
        total = total * 7 + k
    return total


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 9), (9, 3)])
def test_unsigned_bounds(first, last):
    assert compiled(fold)(np.uint64(first), np.uint64(last)) == fold(first, last)


def turns(first, last):
    count = 0
    for _ in range(first, last):
        count += 1
    return count


def test_bounds_far_away():
    count, end = compiled(turns), 2**63 - 1
    assert count(end - 3, end) == 3
    assert count(-end - 1, -end + 1) == 2


def test_a_range_of_the_modules_own_is_refused_as_ever():
    scope = {"range": lambda n: n + 3}
    exec("def f(n):\n    return range(n)", scope)
    f = compiled(scope["f"])
    with pytest.raises(TypingError, match="Modified builtin 'range'"):
        f(4)


class Found(NamedTuple):
    range: int


def in_range(found):
    total = 0
    for k in range(found.range):
        total += k
    return total


def test_a_field_may_be_called_so_too():
    assert compiled(in_range)(Found(4)) == 6


def half_a_turn():
    total = 0
    for k in range(2.5):
        total += k
    return total


def test_what_is_no_whole_number_is_refused():
    call = compiled(half_a_turn)
    line = r"test_counted_range.py, line \d+, `for k in range\(2.5\):`: there is no .*range.*\(float32"
    with pytest.raises(AuthoringError, match=line), explain_compiler_errors(half_a_turn):
        call()


def total_of(x, member, first, last):
    total = x[0]
    for k in range(first, last):
        total += x[member[k]]
    return total


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_elements_that_are_below_are_those_of_the_array(kind):
    member = np.random.default_rng(0).permutation(AGENTS).astype(kind)
    x, f = np.arange(AGENTS, dtype=np.float32), device_function(total_of)

    @njit
    def found(x, at, first, last):
        known = assume_below(view(at, 0, (AGENTS,), kind))
        return f(x, known, first, last), known[-1], known[1:3][1], len(known)

    total, last, third, count = found(x, member.ctypes.data, 3, 9)
    assert total == x[0] + x[member[3:9]].sum()
    assert (last, third, count) == (member[-1], member[2], AGENTS)


def test_a_smaller_bound_is_no_larger_one():
    """A compiler that believes the wrong one leaves the comparison out."""

    def beyond(bound):
        known = cpu_array_ops().assume_below(bound)

        @njit
        def found(at):
            return known(view(at, 0, (1,), np.int32))[0] > 3

        return found

    four = np.full(1, 4, np.int32)
    assert not beyond(3)(np.zeros(1, np.int32).ctypes.data)
    assert beyond(5)(four.ctypes.data)


@pytest.mark.compile
@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels")
def test_a_gpu_does_not_look_at_the_sign_of_what_is_not_negative():
    from numba.cuda import types

    f, known = device_function(total_of), numba_cuda.cuda_array_ops().assume_below(AGENTS)

    def kernel(x, member, out):
        out[0] = f(x, known(member), 10, AGENTS)

    def with_signs(x, member, out):
        total = x[0]
        for k in range(10, AGENTS):
            total += x[member[k]]
        out[0] = total

    kinds = types.float32[::1], types.int32[::1], types.float32[::1]

    def looks(body):
        """Selects and shifts that make something of a sign; there are as many as turns that were put side by side."""
        with numba_cuda.offline((9, 0)):
            ptx = numba_cuda.compile_kernel(body, types.void(*kinds), (9, 0), "ptx")
        return len(re.findall(r"^\s*(?:selp|shr\.s|and\.b64|setp\.lt\.s)", ptx, re.MULTILINE))

    assert looks(kernel) == 0
    assert looks(with_signs) > 0
