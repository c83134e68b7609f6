"""Copies of author functions that run in plain Python with checked integers, arrays, draws and keys.

Compiled code does not check the distance of a shift, or an index. The integers and arrays here do, so that plain Python raises
an error in the line of the fault. Integers also record whether they come from data, so that a draw number that depends on data
is found. Arrays can log every access with its field, its agent and its line.
"""

from __future__ import annotations

import builtins
import dataclasses
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from gpuvec import random
from gpuvec.engine.compiler.diagnostics import PACKAGE, authoring_error_at
from gpuvec.engine.compiler.types import EnvParams, EnvState
from gpuvec.engine.layout.buffers import Buffer
from gpuvec.engine.layout.rng_streams import POOL_DRAW
from gpuvec.engine.layout.schema import ENGINE_FIELDS
from gpuvec.errors import AuthoringError
from gpuvec.random import Key
from gpuvec.spec import Environment

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


BUILTINS: dict[str, Any] = {
    **vars(builtins), "range": lambda *limits: map(CheckedInt, range(*limits)), "int": _checked_conversion(None)
}  # fmt: skip


INTEGERS = (int, np.integer)
Index = Any  # anything that NumPy accepts as an index


class Access(NamedTuple):
    """A read of the numbers of a field that belong to one element of its index set, or a write to them."""

    field: str
    element: tuple[int, ...]  # the index in the set: (agent,), or () in a field of the world
    writes: bool
    file: str
    line: int


AccessLog = list[Access]


class CheckedArray(np.ndarray[Any, np.dtype[Any]]):
    """The array that author code receives.

    A negative index raises an error, since compiled code would count it from the end. Integer elements are checked integers.
    With a log, every access to the array is logged. Accesses to slices of it are not.
    """

    name: str
    log: AccessLog | None
    integers: type[CheckedInt]
    num_set_axes: int  # the first axes, which are those of the field's index set

    @staticmethod
    def of(
        array: NDArray[Any], name: str, log: AccessLog | None = None, data: bool = True, num_set_axes: int = 1
    ) -> CheckedArray:
        """Returns a checked view of an array.

        Args:
            array: (...) array, whose memory the view shares.
            name: the name of the array in messages.
            log: the log to which accesses are added; None for no log.
            data: whether its integers come from data.
            num_set_axes: the number of axes of the index set that it belongs to.
        """
        view = array.view(CheckedArray)
        view.name, view.log, view.integers = name, log, DataInt if data else CheckedInt
        view.num_set_axes = num_set_axes
        return view

    def __array_finalize__(self, obj: object) -> None:
        """Initialises a new view or copy of `obj`, for NumPy. It has no log."""
        self.name, self.log = getattr(obj, "name", "an array"), None
        self.integers = getattr(obj, "integers", DataInt)
        self.num_set_axes = getattr(obj, "num_set_axes", 1)

    def __getitem__(self, index: Index) -> Any:
        """Returns the elements at `index`, as an array of NumPy does; a single integer is a checked one."""
        self._access(index, False)
        element = np.ndarray.__getitem__(self, index)
        return self.integers(element) if isinstance(element, np.integer) else element

    def __setitem__(self, index: Index, value: Any) -> None:
        """Writes `value` to `index`. An integer beyond the range of the dtype wraps, as in compiled code."""
        self._access(index, True)
        if isinstance(value, int) and self.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            value = (int(value) - limits.min) % (1 << 8 * self.dtype.itemsize) + limits.min
        np.ndarray.__setitem__(self, index, value)

    def _access(self, index: Index, writes: bool) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        for k, part in enumerate(parts):
            size = self.shape[min(k, self.ndim - 1)]
            if isinstance(part, INTEGERS) and not 0 <= part < size:
                raise _index_error(f"{self.name}[{', '.join(map(str, parts))}]", bool(part < 0), f"shape is {self.shape}", size)
        if self.log is None:
            return
        set_index = parts[: self.num_set_axes]
        frame = sys._getframe(2)
        place = (writes, frame.f_code.co_filename, frame.f_lineno)
        if len(set_index) == self.num_set_axes and all(isinstance(part, INTEGERS) for part in set_index):
            self.log.append(Access(self.name, tuple(map(int, set_index)), *place))
        else:
            is_accessed = np.zeros(self.shape[: self.num_set_axes], np.bool_)
            is_accessed[set_index] = True
            self.log.extend(Access(self.name, tuple(element), *place) for element in np.argwhere(is_accessed).tolist())


class CheckedTuple(tuple[Any, ...]):
    """A tuple that author code receives, in which a computed index has to exist. A literal index may be negative."""

    name = "a tuple"

    @staticmethod
    def of(parts: Iterable[object], name: str) -> CheckedTuple:
        """Returns a tuple.

        Args:
            parts: its elements.
            name: the name of the tuple in messages.
        """
        checked = CheckedTuple(parts)
        checked.name = name
        return checked

    def __getitem__(self, index: Index) -> Any:
        """Returns the elements at `index`, as a tuple does."""
        if isinstance(index, CheckedInt) and not 0 <= index < len(self):
            raise _index_error(f"{self.name}[{int(index)}]", index < 0, f"length is {len(self)}", len(self))
        return super().__getitem__(index)


def _index_error(element: str, is_negative: bool, size_text: str, size: int) -> IndexError:
    """An error about an index that does not exist; compiled code would read or write other memory, or count from the end."""
    if is_negative:
        allowed = f"the index must be from 0 to {size - 1}, and Python would count a negative one from the end"
        return IndexError(f"{element} does not exist; where -1 stands for no agent, test for it first; {allowed}")
    return IndexError(f"{element} does not exist; its {size_text}, so clip the index to 0 to {size - 1}, or test it first")


STALE = {"f": math.nan, "b": True}  # {kind of dtype: a value that the last episode may have left}


def stale_array(buffer: Buffer) -> NDArray[Any]:
    """Returns a field with values that the last episode may have left.

    Args:
        buffer: the shape and the dtype of the field.
    """
    dtype = np.dtype(buffer.dtype)
    value = np.iinfo(buffer.dtype).max if dtype.kind in "iu" else STALE[dtype.kind]
    return np.full(buffer.shape, value, dtype)


def checked_value(value: object, data: bool = True, name: str | None = None) -> Any:
    """Replaces integers, arrays and tuples, even within a tuple, by checked ones.

    Args:
        value: an argument of author code.
        data: whether its integers come from data.
        name: the name of the value in messages.
    """
    if isinstance(value, np.ndarray):
        return value if isinstance(value, CheckedArray) else CheckedArray.of(value, name or "an array", data=data)
    if isinstance(value, bool | np.bool_ | CheckedInt):
        return value
    if isinstance(value, int | np.signedinteger):
        return (DataInt if data else CheckedInt)(value)
    if isinstance(value, tuple) and value:
        parts = [checked_value(part, data, name) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else CheckedTuple.of(parts, name or CheckedTuple.name)
    return value


def checked_state(s: EnvState, log: AccessLog | None = None, num_set_axes: Mapping[str, int] | None = None) -> EnvState:
    """Returns a view of a state with checked integers and arrays.

    Args:
        s: the state, whose arrays share their memory with the view.
        log: the log to which accesses to arrays are added; None for no log.
        num_set_axes: {array field: the number of axes of its index set}; None if all fields belong to the agents.
    """
    axes = num_set_axes or {}
    parts = (
        CheckedArray.of(v, k, log, k not in ENGINE_FIELDS, axes.get(k, 1)) if isinstance(v, np.ndarray) else checked_value(v)
        for k, v in zip(s._fields, s, strict=True)
    )
    return type(s)(*parts)


KEY_RULE = "so results depend on the row, the episode or the seed; pass the key to draws alone"
OWN_KEY = "draws with a key that it created; draw with the key that is its argument"
_word = lru_cache(maxsize=4096)(random.word)  # a phase runs several times, and Philox in plain Python takes 0.2 ms
_uniform, _randint = random.uniform, random.randint


class Draw(NamedTuple):
    """One random number that author code drew."""

    number: int
    file: str
    line: int
    instruction: int  # the index of the bytecode instruction in its function


def _author_place() -> tuple[str, int]:
    """The file and the line of the innermost author code on the stack."""
    frame = _author_frame()
    return frame.f_code.co_filename, frame.f_lineno


def _author_frame() -> FrameType:
    """The frame of the innermost author code on the stack."""
    frame = sys._getframe(1)
    while frame.f_back is not None and in_package(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def in_package(file: str) -> bool:
    """Whether a file belongs to this package, and not to an author.

    Args:
        file: the path of the file.
    """
    return file.startswith(f"{PACKAGE}/") or Path(file) == PACKAGE


class CheckedKey(Key):
    """The key that author code receives, which may draw with it and read its `step`, but no other field."""

    def _refuse(self, name: str) -> AuthoringError:
        return authoring_error_at(*_author_place(), f"reads {name} of the key, {KEY_RULE}")

    def __getattribute__(self, name: str) -> Any:
        """Returns the field `name`, which may only be `step`."""
        if name in ("seed", "seed_high", "row", "episode"):
            raise self._refuse(name)
        return super().__getattribute__(name)

    def __getitem__(self, index: object) -> Any:
        """Raises AuthoringError for any `index`: elements of a key may not be read."""
        raise self._refuse(f"element {index}")

    def __iter__(self) -> Iterator[Any]:
        """Raises AuthoringError: elements of a key may not be read."""
        raise self._refuse("all elements")

    def plain(self) -> Key:
        """The key without checks."""
        return Key._make(tuple.__iter__(self))


def checked_word(key: Key, draw: int) -> int:
    """Draws 32 random bits as `gpuvec.random.word` does, through the module, so that `record_draws` records it.

    Args:
        key: the key that the author's function passes.
        draw: the number of the draw.
    """
    return random.word(key, draw)


def checked_uniform(key: Key, draw: int, low: float, high: float) -> float:
    """Draws as `gpuvec.random.uniform` does, after a check of the bounds.

    Args:
        key: the key that the author's function passes.
        draw: the number of the draw.
        low: the lower bound.
        high: the upper bound.

    Raises:
        AuthoringError: `low` is above `high`.
    """
    if not low <= high:
        problem = f"uniform draws from {low:.7g} to {high:.7g}; the lower bound must not be above the upper one"
        raise authoring_error_at(*_author_place(), problem)
    return _uniform(key, draw, low, high)


def checked_randint(key: Key, draw: int, low: int, high: int) -> int:
    """Draws as `gpuvec.random.randint` does, after a check of the bounds.

    Args:
        key: the key that the author's function passes.
        draw: the number of the draw.
        low: the lower bound, inclusive.
        high: the upper bound, exclusive.

    Raises:
        AuthoringError: there is no integer to draw.
    """
    if not low < high:
        problem = f"randint draws from {low} to below {high}, where there is no integer; the upper bound must be greater"
        raise authoring_error_at(*_author_place(), problem)
    return DataInt(_randint(key, draw, int(low), int(high)))


@contextmanager
def record_draws() -> Iterator[list[Draw]]:
    """Yields a list to which every draw in plain Python is added.

    A draw raises AuthoringError if its key is not a `CheckedKey`, or if its number comes from data or is reserved.
    """
    draws: list[Draw] = []

    def word(key: Key, draw: int) -> int:
        frame = _author_frame()
        place = frame.f_code.co_filename, frame.f_lineno
        if not isinstance(key, CheckedKey):
            raise authoring_error_at(*place, OWN_KEY)
        if isinstance(draw, DataInt):
            problem = f"draw number {int(draw)} depends on data, so it may equal that of another draw"
            remedy = "compute it from literals, the agent's index and the indices of loops, such as 3 * i + 1"
            raise authoring_error_at(*place, f"{problem}; {remedy}")
        if not 0 <= draw < POOL_DRAW:
            problem = f"draw number {int(draw)} is reserved; use numbers from 0 to {POOL_DRAW - 1}"
            raise authoring_error_at(*place, problem)
        draws.append(Draw(int(draw), *place, frame.f_lasti))
        return _word(key.plain(), int(draw))

    with mock.patch.object(random, "word", word):
        yield draws


PACKAGE_NAME = "gpuvec"
DRAWS: dict[Any, Any] = {random.uniform: checked_uniform, random.randint: checked_randint, random.word: checked_word}


class CheckedFunctions:
    """Creates one copy of each author function, which reads checked values from its module, defaults and closure."""

    def __init__(self) -> None:
        self._copies: dict[types.FunctionType, types.FunctionType] = {}

    def function(self, function: Any) -> Any:
        """Returns the checked copy of a function.

        Args:
            function: an author's function, or a tuple or a mapping, whose functions are copied; any other value is returned
                unchanged.
        """
        if isinstance(function, Mapping):
            return {key: self.function(value) for key, value in function.items()}
        if isinstance(function, tuple):
            parts = map(self.function, function)
            return type(function)(*parts) if hasattr(function, "_fields") else tuple(parts)
        if not isinstance(function, types.FunctionType):
            return function
        if function in DRAWS:
            return DRAWS[function]
        if function.__module__ is not None and function.__module__.partition(".")[0] == PACKAGE_NAME:
            return function
        if function not in self._copies:
            scope: dict[str, Any] = {"__builtins__": BUILTINS, "__name__": function.__module__}
            literals = (CheckedTuple.of(c, str(c)) if _is_table(c) else c for c in function.__code__.co_consts)
            code = function.__code__.replace(co_consts=tuple(literals))
            cells = tuple(types.CellType() for _ in code.co_freevars)
            copy = types.FunctionType(code, scope, function.__name__, None, cells)
            self._copies[function] = copy  # stored before the functions that it calls are copied, because they may call it
            names = _names(function.__code__)
            scope |= {k: self._value(v, k) for k, v in function.__globals__.items() if k in names}
            for cell, original in zip(cells, function.__closure__ or (), strict=True):
                cell.cell_contents = self._value(original.cell_contents)
            copy.__defaults__ = self._value(function.__defaults__)
            copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
        return self._copies[function]

    def _value(self, value: object, name: str | None = None) -> Any:
        """The value that author code receives instead of `value`, that of the variable `name`."""
        if value is np:
            return CheckedNumpy()
        if isinstance(value, type):
            return CONVERSIONS.get(value, value)
        if isinstance(value, types.FunctionType):
            return self.function(value)
        return checked_value(value, data=False, name=name)

    def environment(self, env: Environment) -> Any:
        """Returns a copy of an environment with checked copies of all functions that kernels run.

        Args:
            env: the environment.
        """
        names = ("reset", "step", "observe", "allowed", "phases", "reward", "terminated", "active", "to_move")
        changed = {name: self.function(getattr(env, name)) for name in names if hasattr(env, name)}
        for name in ("observation", "critic_observation"):
            if getattr(env, name, None) is not None:
                changed[name] = self._declared(getattr(env, name))
        return dataclasses.replace(env, **changed)

    def _declared(self, observation: Callable[[EnvParams], Any]) -> Callable[[EnvParams], Any]:
        return lambda p: self.function(observation(p))


def checked_params(p: EnvParams) -> EnvParams:
    """Returns parameters with checked integers, which do not come from data, and checked tables.

    Args:
        p: the parameters, with the tables as further fields.
    """
    parts = (
        CheckedArray.of(v, f"p.{k}", data=False) if isinstance(v, np.ndarray) else checked_value(v, data=False)
        for k, v in zip(p._fields, p, strict=True)
    )
    return type(p)(*parts)


def _is_table(value: object) -> bool:
    """Whether a value is a tuple of numbers, or of such tuples."""
    return isinstance(value, tuple) and len(value) > 0 and all(isinstance(v, int | float) or _is_table(v) for v in value)


def _names(code: types.CodeType) -> set[str]:
    """The names that `code`, or a function within it, may read from its module."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
