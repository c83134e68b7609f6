"""Integers that raise an error in plain Python where compiled code silently computes a wrong value.

Compiled code does not check the distance of a shift. These integers do, so that plain Python raises an error in the line of the
shift. They also record whether they come from data, so that a draw number that depends on data is found.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SHIFT_BITS = 32  # the width of an `int` in states and in CUDA C++
_HALF = 1 << 63


class CheckedInt(int):
    """An integer with the arithmetic of an int64, which raises ValueError for shifts by less than 0 or more than 31."""

    def __abs__(self) -> int:
        """Returns the absolute value as a checked integer."""
        return type(self)(int.__abs__(self))

    def __neg__(self) -> int:
        """Returns the negative as a checked integer."""
        return type(self)(int.__neg__(self))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Applies an operator between a NumPy scalar and this integer, which counts as a Python integer.

        Args:
            ufunc: the operator.
            method: the method of the ufunc, such as "__call__".
            inputs: the operands.
            options: keyword arguments of the ufunc.
        """
        if ufunc in (np.left_shift, np.right_shift):
            _check_shift(int(inputs[1]), 8 * np.asarray(inputs[0]).dtype.itemsize if inputs[0] is not self else SHIFT_BITS)
        result = getattr(ufunc, method)(*(int(x) if isinstance(x, CheckedInt) else x for x in inputs), **options)
        return _result(int(result), *inputs) if isinstance(result, np.signedinteger) else result


class DataInt(CheckedInt):
    """An integer that depends on the state, an action or a random number."""


def _check_shift(count: int, num_bits: int) -> None:
    if not 0 <= count < num_bits:
        raise ValueError(f"a shift by {count}; an integer of {num_bits} bits can be shifted by 0 to {num_bits - 1}")


def _result(value: int, a: object, b: object) -> int:
    """Wraps `value` to an int64, which comes from data if one of the operands does."""
    if not -_HALF <= value < _HALF:
        value = (value + _HALF) % (2 * _HALF) - _HALF
    return DataInt(value) if isinstance(a, DataInt) or isinstance(b, DataInt) else CheckedInt(value)


def _method(name: str, reflected: bool) -> Callable[[CheckedInt, object], Any]:
    """The method of `CheckedInt` for an operator."""
    plain = getattr(int, f"__{'r' if reflected else ''}{name}__")
    shifts = name in ("lshift", "rshift")

    def method(self: CheckedInt, other: object) -> Any:
        if not isinstance(other, int):
            return plain(self, other)
        if shifts:
            _check_shift(int(self if reflected else other), SHIFT_BITS)
        return _result(plain(self, other), self, other)

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift", "and", "or", "xor"):
    setattr(CheckedInt, f"__{_name}__", _method(_name, False))
    setattr(CheckedInt, f"__r{_name}__", _method(_name, True))


def _checked_range(*arguments: int) -> Iterator[int]:
    return map(CheckedInt, range(*arguments))


def _checked_conversion(num_bits: int | None) -> Callable[..., int]:
    """Returns a conversion to a signed integer of `num_bits` bits, like `np.int32` for 32, or like `int` for None."""

    def convert(value: str | float = 0) -> int:
        number = int(value)
        if num_bits is not None:
            half = 1 << (num_bits - 1)
            number = (number + half) % (2 * half) - half
        plain = isinstance(value, int | np.integer) and not isinstance(value, DataInt)
        return CheckedInt(number) if plain else DataInt(number)

    return convert


CONVERSIONS: dict[Any, Any] = {np.dtype(f"i{size}").type: _checked_conversion(8 * size) for size in (1, 2, 4, 8)}


class CheckedNumpy:
    """The module `numpy` that author code receives, whose conversions to signed integers return checked ones."""

    def __getattr__(self, name: str) -> Any:
        """Returns the attribute `name` of NumPy."""
        value = getattr(np, name)
        return CONVERSIONS.get(value, value) if isinstance(value, type) else value


BUILTINS: dict[str, Any] = {**vars(builtins), "range": _checked_range, "int": _checked_conversion(None)}
