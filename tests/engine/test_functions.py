"""How functions of an author are compiled: float32 arithmetic, called functions, and refused code."""

import dis
import math
import traceback
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit, types

from gpuvec import Key, uniform
from gpuvec.engine.compiler.functions import (
    bind,
    call_source,
    device_function,
    generate_function,
    inline_function,
    params_as_scalars,
)
from gpuvec.errors import AuthoringError

SCALE = 2.5
TABLE = (0.25, (1.5, 3))
COUNT = 3
shadow = 9.8


def literal(x):
    return 0.5 * x + 1.0


def default(x, k=0.1):
    return k * x


def module_float(x):
    return SCALE * x


def module_tuple(x):
    return TABLE[0] * x + TABLE[1][0]


def negative(x):
    return -0.1 * x


def branches(x):
    return 1.0 if x > 0.3 else -1.0


def bounded(x):
    return min(max(x, -0.7), 0.7)


def remainder(x):
    return x % 6.28


def power(x):
    return x**2 + x**0.5


def calls_helpers(x):
    return literal(x) * default(x) + module_float(x)


def closure():
    k = 0.1

    def inner(x):
        return k * x

    return inner


def result_type(function):
    """The type that `function` returns when compiled for a float32."""
    inner = device_function(function)

    @njit
    def outer(x):
        return inner(x)

    outer.compile((types.float32,))
    return outer.overloads[outer.signatures[0]].signature.return_type


def call(function, *arguments):
    """The result of the compiled function, called from another one, since Python cannot call it directly."""
    inner = device_function(function)

    @njit(error_model="numpy")
    def outer(*args):
        return inner(*args)

    return outer(*arguments)


class TestFloats:
    FUNCTIONS = (
        literal,
        default,
        module_float,
        module_tuple,
        negative,
        branches,
        bounded,
        remainder,
        power,
        calls_helpers,
        closure(),
    )

    @pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
    def test_float_means_float32(self, function):
        assert result_type(function) == types.float32

    @pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
    def test_compiled_function_agrees_with_python(self, function):
        for x in (0.3, 1.0, 2.75):
            assert call(function, np.float32(x)) == pytest.approx(function(x), rel=1e-6)

    def test_literal_is_rounded_to_float32_before_use(self):
        x = next(x for x in np.arange(1, 100, dtype=np.float32) if np.float32(0.1) * x != np.float32(0.1 * float(x)))
        assert call(default, x) == np.float32(0.1) * x

    def test_function_of_the_author_does_not_change(self):
        device_function(literal)
        assert type(literal(np.float64(0.1))) is np.float64
        assert all(type(c) is not np.float32 for c in literal.__code__.co_consts)
        assert type(SCALE) is float

    def test_integers_and_booleans_keep_their_types(self):
        def mixed(n):
            return n * COUNT + 2, n > 1, True

        n, above, always = call(mixed, 4)
        assert (n, above, always) == (14, True, True)
        assert isinstance(n, int)

    def test_params_become_scalars_of_32_bits(self):
        class Params(NamedTuple):
            mass: float = 1.1
            count: int = 3
            flag: bool = True

        frozen = params_as_scalars(Params())
        assert [type(v) for v in frozen] == [np.float32, np.int32, bool]
        assert frozen == (np.float32(1.1), 3, True)


class TestNames:
    def test_called_functions_are_compiled_once(self):
        device_function(calls_helpers)
        assert device_function(literal) is device_function(literal)
        assert device_function(calls_helpers).py_func.__globals__["literal"] is device_function(literal)

    def test_attribute_may_have_the_name_of_a_global(self):
        """`s.endless` does not call the function `endless`, and `s.shadow` does not read the global float."""

        class Body(NamedTuple):
            shadow: float
            endless: float

        def read(x):
            s = Body(x, 2.0 * x)
            return s.shadow + s.endless

        assert call(read, np.float32(1.5)) == 4.5

    def test_argument_may_have_the_name_of_a_global(self):
        def read(shadow):
            return shadow + 1.0

        assert call(read, np.float32(1.5)) == 2.5

    def test_name_docstring_and_module_are_preserved(self):
        assert device_function(uniform).py_func.__doc__ == uniform.__doc__
        assert device_function(uniform).py_func.__qualname__ == "uniform"
        assert device_function(uniform).py_func.__module__ == "gpuvec.random"

    def test_literals_share_one_compiled_signature(self):
        def sum_of_draws(seed):
            key = Key(seed, seed, seed, seed, np.int32(0))
            return uniform(key, 0, 0.0, 1.0) + uniform(key, 1, 0.0, 1.0) + uniform(key, 7, -2.0, 3.5)

        call(sum_of_draws, np.uint32(1))
        before = len(device_function(uniform).signatures)
        call(lambda seed: uniform(Key(seed, seed, seed, seed, np.int32(0)), 11, -1.0, 1.0), np.uint32(1))
        assert len(device_function(uniform).signatures) == before


def endless(x):
    return endless(x - 1.0)


def ping(x):
    return pong(x)


def pong(x):
    return ping(x)


def calls_endless(x):
    return endless(x)


class TestRefusal:
    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (endless, r"endless calls itself \(endless -> endless\); device code has no recursion: write a loop"),
            (calls_endless, r"endless calls itself \(calls_endless -> endless -> endless\)"),
            (ping, r"ping calls itself \(ping -> pong -> ping\)"),
        ],
    )
    def test_recursion_is_refused(self, function, message):
        with pytest.raises(AuthoringError, match=message):
            device_function(function)

    def test_recursion_is_refused_at_each_compilation(self):
        for _ in range(2):
            with pytest.raises(AuthoringError, match="endless calls itself"):
                device_function(endless)


class TestDivision:
    @pytest.mark.parametrize(
        ("a", "b", "result"), [(1.0, 0.0, math.inf), (-1.0, 0.0, -math.inf), (1.0, -0.0, -math.inf), (0.0, 0.0, math.nan)]
    )
    def test_division_by_zero_follows_ieee_754(self, a, b, result):
        def divide(a, b):
            return a / b

        assert call(divide, np.float32(a), np.float32(b)) == pytest.approx(result, nan_ok=True)

    def test_remainder_by_zero_is_nan(self):
        def modulo(a, b):
            return a % b

        assert math.isnan(call(modulo, np.float32(1.0), np.float32(0.0)))

    def test_division_by_zero_in_a_called_function(self):
        def inverse(x):
            return 1.0 / x

        def twice(x):
            return 2.0 * inverse(x)

        assert call(twice, np.float32(0.0)) == math.inf


class TestGenerateFunction:
    def test_function_reads_its_scope(self):
        assert generate_function("add", "def add(a):\n    return a + b\n", b=2)(3) == 5

    def test_traceback_shows_the_source(self):
        fail = generate_function("fail", "def fail(a):\n    return a // nothing  # the line\n", nothing=0)
        with pytest.raises(ZeroDivisionError) as error:
            fail(1)
        assert "a // nothing  # the line" in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("count", [1, 30, 31, 61])
def test_a_call_with_many_arguments_collects_them_in_no_list(count):
    call = call_source("collect", [f"x + {k}" for k in range(count)])
    function = generate_function("call", f"def call(x):\n    return {call}\n", collect=lambda *arguments: arguments)
    assert function(1) == tuple(range(1, count + 1))
    assert not any("LIST" in instruction.opname for instruction in dis.get_instructions(function))


class Limits(NamedTuple):
    step: int
    unused: int


class Sizes(NamedTuple):
    add: object
    limits: Limits


Sizes.__module__ = "gpuvec.engine.sizes"  # Objects of the engine alone are compared by what functions read of them.
sizes = None
has_wide_rows = False


def add_step(x):
    if has_wide_rows:
        return x.missing  # An int has no such attribute, so the branch must not be typed.
    return sizes.add(x, sizes.limits.step)


def add_step_twice(x):
    return add_step(add_step(x))


def add_step_of_local(x):
    limits = sizes.limits
    return x + limits.step


def sum_of(x, y):
    return x + y


class TestBind:
    @staticmethod
    def call(function, x):
        @njit
        def caller(x):
            return function(x)

        return caller(x)

    @staticmethod
    def sizes(step, unused=0):
        return Sizes(inline_function(sum_of), Limits(step, unused))

    def test_functions_read_attributes_and_call_each_other(self):
        twice = bind(add_step_twice, sizes=self.sizes(5), has_wide_rows=False)
        assert self.call(twice, 1) == 11
        assert sizes is None  # The module keeps its own value.

    def test_a_value_that_is_a_function_is_bound_with_the_same_values(self):
        replaced = bind(add_step_twice, sizes=self.sizes(7), has_wide_rows=False, add_step=add_step_of_local)
        assert self.call(replaced, 1) == 15

    def test_functions_are_shared_if_all_that_they_read_is_equal(self):
        first = bind(add_step, sizes=self.sizes(5), has_wide_rows=False)
        assert bind(add_step, sizes=self.sizes(5, unused=1), has_wide_rows=False) is first
        second = bind(add_step, sizes=self.sizes(6), has_wide_rows=False)
        assert second is not first
        assert (self.call(first, 1), self.call(second, 1)) == (6, 7)

    def test_a_name_that_nothing_reads_is_refused(self):
        with pytest.raises(NameError, match=r"add_step is bound with values of \['has_wide_row'\]"):
            bind(add_step, sizes=self.sizes(5), has_wide_row=True)

    def test_a_name_that_another_function_reads_is_ignored(self):
        assert self.call(bind(add_step_of_local, sizes=self.sizes(5), has_wide_rows=True), 1) == 6

    def test_an_object_in_a_local_variable_is_compared_by_itself(self):
        first, second = (bind(add_step_of_local, sizes=self.sizes(step)) for step in (5, 6))
        assert (self.call(first, 1), self.call(second, 1)) == (6, 7)
