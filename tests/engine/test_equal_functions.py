"""Functions of equal content are one Numba function; functions that differ in a value or its type are not."""

import gc
import weakref

import numpy as np
import pytest

from gpuvec.engine.compiler.functions import equality_key, generate_function, inline_function, referenced_values


def key_of(function):
    """The key of a function, or None if it cannot be compared."""
    values = referenced_values(function)
    return None if values is None else equality_key(function, values)


def make_scale(factor, function=None):
    def scale(x):
        return x * factor if function is None else function(x) * factor

    return scale


def test_functions_with_equal_values_are_one():
    inner = inline_function(make_scale(np.float32(2)))
    assert inline_function(make_scale(np.float32(2))) is inner
    assert inline_function(make_scale((1, "a"), inner)) is inline_function(make_scale((1, "a"), inner))


def test_generated_functions_of_equal_source_and_values_are_one():
    first, second = (inline_function(generate_function("f", "def f(x):\n    return x + n\n", n=3)) for _ in range(2))
    assert first is second
    assert inline_function(generate_function("f", "def f(x):\n    return x + n\n", n=4)) is not first
    assert inline_function(generate_function("f", "def f(x):\n    return x - n\n", n=3)) is not first


VALUES = [1, 2, True, 1.0, 0.0, -0.0, np.int32(1), np.int64(1), np.float32(1), (1,), (True,), "1", int, None]


def test_values_of_other_types_differ():
    assert len({key_of(make_scale(value)) for value in VALUES}) == len(VALUES)
    assert key_of(make_scale(1, make_scale(1))) != key_of(make_scale(1, make_scale(1)))


def test_defaults_and_globals_are_compared():
    def with_default(n):
        def f(x, y=n):
            return x + y

        return f

    assert key_of(with_default(1)) == key_of(with_default(1)) != key_of(with_default(2))


def with_array():
    return make_scale(np.zeros(2))


def with_inner_function():
    def outer(x):
        def inner(y):
            return y + x

        return inner(1)

    return outer


def test_an_unset_variable_has_no_key():
    def read():
        return later

    assert key_of(read) is None
    later = 1
    assert key_of(read) is not None


@pytest.mark.parametrize("make", [with_array, with_inner_function])
def test_functions_without_a_key_are_not_shared(make):
    assert key_of(make()) is None
    assert inline_function(make()) is not inline_function(make())


def test_a_changed_global_makes_another_function(monkeypatch):
    monkeypatch.setitem(globals(), "offset", 1)

    def make():
        def shift(x):
            return x + offset  # noqa: F821

        return inline_function(shift)

    first = make()
    assert make() is first
    monkeypatch.setitem(globals(), "offset", 2)
    assert make() is not first


def test_unused_functions_are_released():
    reference = weakref.ref(inline_function(make_scale(np.float32(12345))))
    gc.collect()
    assert reference() is None
