"""Integers that refuse, in plain Python, what compiled code does without a word.

Compiled code tests no shift. These integers do, so that plain Python raises an error in the line that does it. They also
remember whether they come from data, so that a draw number that depends on data is found.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SHIFT_BITS = 32  # `int` is an int32 in states and in CUDA C++
_HALF = 1 << 63


class CheckedInt(int):
    """An integer of author code, with the arithmetic of an int64; shifts by less than 0 or more than 31 are refused."""

    def __abs__(self) -> int:
        """The absolute value, checked as well."""
        return type(self)(int.__abs__(self))

    def __neg__(self) -> int:
        """The negative, checked as well."""
        return type(self)(int.__neg__(self))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Operators between NumPy's scalars and this one, which counts as an integer of Python."""
        if ufunc in (np.left_shift, np.right_shift):
            _check_shift(int(inputs[1]), 8 * np.asarray(inputs[0]).dtype.itemsize if inputs[0] is not self else SHIFT_BITS)
        found = getattr(ufunc, method)(*(int(x) if isinstance(x, CheckedInt) else x for x in inputs), **options)
        return _result(int(found), *inputs) if isinstance(found, np.signedinteger) else found


class DataInt(CheckedInt):
    """An integer that depends on the state, an action or a random number."""


def _check_shift(count: int, bits: int) -> None:
    if not 0 <= count < bits:
        raise ValueError(f"a shift by {count}; an integer of {bits} bits can be shifted by 0 to {bits - 1}")


def _result(value: int, a: Any, b: Any) -> int:
    """`value` as an int64, from data if one of the operands is."""
    if not -_HALF <= value < _HALF:
        value = (value + _HALF) % (2 * _HALF) - _HALF
    return DataInt(value) if isinstance(a, DataInt) or isinstance(b, DataInt) else CheckedInt(value)


def _method(name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    """The method of `CheckedInt` for an operator."""
    plain = getattr(int, f"__{'r' if reflected else ''}{name}__")
    shifts = name in ("lshift", "rshift")

    def method(self: CheckedInt, other: Any) -> Any:
        if not isinstance(other, int):
            return plain(self, other)
        if shifts:
            _check_shift(int(self if reflected else other), SHIFT_BITS)
        return _result(plain(self, other), self, other)

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift", "and", "or", "xor"):
    setattr(CheckedInt, f"__{_name}__", _method(_name, False))
    setattr(CheckedInt, f"__r{_name}__", _method(_name, True))


def checked_range(*arguments: Any) -> Iterator[int]:
    """`range`, with checked integers."""
    return map(CheckedInt, range(*arguments))


def checked_int(bits: int | None) -> Callable[..., int]:
    """A conversion to a signed integer of so many bits, as `np.int32` is one of 32; None stands for `int`."""

    def convert(value: Any = 0) -> int:
        number = int(value)
        if bits is not None:
            half = 1 << (bits - 1)
            number = (number + half) % (2 * half) - half
        plain = isinstance(value, int | np.integer) and not isinstance(value, DataInt)
        return CheckedInt(number) if plain else DataInt(number)

    return convert


CONVERSIONS: dict[Any, Any] = {np.dtype(f"i{size}").type: checked_int(8 * size) for size in (1, 2, 4, 8)}


class CheckedNumpy:
    """NumPy as author code gets it: conversions to signed integers give checked ones."""

    def __getattr__(self, name: str) -> Any:
        """What NumPy has under that name."""
        value = getattr(np, name)
        return CONVERSIONS.get(value, value) if isinstance(value, type) else value


BUILTINS: dict[str, Any] = {**vars(builtins), "range": checked_range, "int": checked_int(None)}
