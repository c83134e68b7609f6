"""Copies of an author's functions that nobody else can change, each with a hash of its content.

A kernel is compiled from the copy, and stored under the copy's hash. So the hash is that of exactly what was compiled, whatever
happens afterwards to the module's constants, helper functions, arrays and closures.

A function is copied with all that it reads: code, defaults, closure, and what it loads from its module, down to numbers, arrays
and further functions. Copies of equal content are one object within a process, so what is compiled of them can be shared.
What cannot be followed is used as it is; a copy that holds some has no hash, is not shared, and is not kept on disk.
"""

from __future__ import annotations

import builtins
import copy
import dis
import enum
import hashlib
import struct
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary, WeakValueDictionary

import gymnasium as gym
import numpy as np

LIBRARIES = ("numpy", "math", "builtins", "cmath", "operator")  # modules whose names mean the same for one version of Python
PLAIN = (type(None), type(...), bool, int, str, bytes)
SPACES = {gym.spaces.Box: ("low", "high"), gym.spaces.Discrete: ("start", "n"), gym.spaces.MultiDiscrete: ("start", "nvec")}
MISSING = object()


@dataclass(frozen=True, eq=False)
class Content:
    """What is known of a frozen copy."""

    digest: str  # of the content
    unknown: str | None  # the first thing that could not be followed, if there is one
    origin: tuple[Any, ...]  # files, lines, classes: copies that differ in these are told apart in a process, but not on disk
    reads: tuple[tuple[Any, ...], ...]  # (original object, name, value) of all that could be changed
    classes: tuple[tuple[type, str], ...]  # NamedTuple classes, which are not copied, and their description

    def is_current(self) -> bool:
        """Whether the originals still have this content; False if that takes a new copy to see."""
        return all(_is_current(*read) for read in self.reads) and self.are_classes_current()

    def are_classes_current(self) -> bool:
        """Whether the classes still have the fields, types and defaults that they had."""
        return all(description_of(kind) == description for kind, description in self.classes)


_contents: WeakKeyDictionary[FunctionType, Content] = WeakKeyDictionary()  # of frozen functions
_modules: WeakKeyDictionary[FunctionType, dict[str, Any]] = WeakKeyDictionary()  # of the originals
_functions: WeakValueDictionary[Any, FunctionType] = WeakValueDictionary()  # frozen functions by digest and origin


def frozen_function(function: FunctionType) -> FunctionType:
    """The copy of a plain function; of a copy, itself."""
    return function if function in _contents else Freezer().function(function)


def module_of(function: Any) -> dict[str, Any]:
    """The names of the module in which a function, or what it is a copy of, was defined; for messages, as they may change."""
    found: dict[str, Any] = _modules.get(function, function.__globals__)
    return found


def content_of(function: FunctionType) -> Content:
    """What is known of a frozen function."""
    return _contents[function]


class Freezer:
    """Copies values and hashes the copies.

    Attributes:
        unknown, origin, reads, classes: as in `Content`, of all values so far.
    """

    def __init__(self, outer: Freezer | None = None) -> None:
        self._hash = hashlib.sha256()
        self._copies: dict[FunctionType, FunctionType] = {} if outer is None else outer._copies  # of this walk
        self._open: list[FunctionType] = [] if outer is None else outer._open  # functions that are being copied
        self.unknown: str | None = None
        self.origin: list[Any] = []
        self.reads: list[tuple[Any, ...]] = []
        self.classes: list[tuple[type, str]] = []

    def content(self) -> Content:
        """All values so far."""
        return Content(
            self._hash.hexdigest(), self.unknown, tuple(self.origin), tuple(self.reads), tuple(dict.fromkeys(self.classes))
        )

    def put(self, *parts: Any) -> None:
        """Adds parts to the hash that `repr` tells apart."""
        self._hash.update(repr(parts).encode() + b"\n")

    def add(self, content: Content) -> None:
        """Adds what is known of another copy."""
        self.put("content", content.digest)
        self.unknown = self.unknown or content.unknown
        self.reads += content.reads
        self.classes += content.classes

    def value(self, x: Any) -> Any:
        """The copy of `x`, which is `x` itself where it cannot change or cannot be followed."""
        kind = type(x)
        if kind in PLAIN:
            self.put(kind.__name__, x)
        elif kind is float:
            self.put("float", struct.pack("<d", x))
        elif kind is complex:
            self.put("complex", struct.pack("<2d", x.real, x.imag))
        elif isinstance(x, enum.Enum):
            self._class(kind)
            self.put("member", x.name)
        elif kind is np.ndarray or (isinstance(x, np.generic) and x.dtype != object):
            return self._array(x)
        elif isinstance(x, np.dtype):
            self._dtype(x)
        elif isinstance(x, tuple | list | dict | frozenset):
            return self._container(x)
        elif isinstance(x, FunctionType):
            return self.function(x)
        elif isinstance(x, CodeType):
            self._code(x)
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, gym.Space):
            return self._space(x)
        elif isinstance(x, BuiltinFunctionType | np.ufunc | ModuleType):
            self._named(x)
        else:
            self._leave(x, f"a {kind.__module__}.{kind.__qualname__}")
        return x

    def _leave(self, x: Any, what: str) -> None:
        self.put("unknown", what)
        self.origin.append(id(x))
        self.unknown = self.unknown or what

    def _array(self, x: Any) -> Any:
        if x.dtype.hasobject:
            self._leave(x, "an array of objects")
            return x
        made = x.copy(order="K") if isinstance(x, np.ndarray) else x.copy()
        self._dtype(made.dtype)
        self.put("array", type(made).__name__, made.shape, made.strides, x.flags.writeable)
        self.put(made.tobytes(order="A") if isinstance(made, np.ndarray) else made.tobytes())
        if isinstance(made, np.ndarray):
            made.flags.writeable = x.flags.writeable  # which is part of its type in Numba
            self.reads.append((x, None, made))
        return made

    def _dtype(self, x: np.dtype[Any]) -> None:
        self.put("dtype", x.str, x.itemsize, x.alignment, x.isalignedstruct, x.shape, x.names, x.type.__name__)
        if x.subdtype is not None:
            self._dtype(x.subdtype[0])
        for name in x.names or ():
            field, offset = x.fields[name][:2]  # type: ignore[index]  # a dtype with names has fields
            self.put(offset)
            self._dtype(field)

    def _container(self, x: Any) -> Any:
        kind = type(x)
        named = issubclass(kind, tuple) and hasattr(kind, "_fields")
        if kind not in (tuple, list, dict, frozenset) and not named:
            self._leave(x, f"a {kind.__module__}.{kind.__qualname__}")
            return x
        self.put(kind.__name__, len(x))
        if named:
            self._class(kind)
            return kind._make(map(self.value, x))
        if isinstance(x, frozenset):
            for one in sorted(x, key=repr):
                self.value(one)
            return x
        if kind is not tuple:  # its elements may be exchanged
            self.reads.append((MISSING, None, None))
        if isinstance(x, dict):
            return {self.value(name): self.value(one) for name, one in x.items()}  # in order: that of roles counts
        return kind(map(self.value, x))

    def _named(self, x: Any) -> None:
        """A part of a library, which its name identifies."""
        module = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None) or "numpy"
        holder = getattr(x, "__self__", None)
        bound = holder is not None and not isinstance(holder, ModuleType)
        foreign = isinstance(x, np.ufunc) and getattr(np, x.__name__, None) is not x
        if bound or foreign or module.partition(".")[0] not in LIBRARIES:
            self._leave(x, f"{module}, a module that may change" if isinstance(x, ModuleType) else f"{x!r}")
        self.put("library", module, x.__name__)

    def _class(self, x: type) -> None:
        if issubclass(x, enum.Enum):
            self.put("enum", x.__qualname__, [base.__name__ for base in x.__mro__])
            for name, member in x.__members__.items():
                self.put(name, member.name)
                self.value(member.value)
            self.origin.append(x)
        elif issubclass(x, tuple) and hasattr(x, "_fields"):
            try:
                description = description_of(x)
            except NameError as error:  # a type that only a function knows
                self._leave(x, f"the types of {x.__qualname__}: {error}")
                return
            self.put("fields", description)
            self.classes.append((x, description))
            for value in x._field_defaults.values():  # type: ignore[attr-defined]  # of a NamedTuple
                self.value(value)
            self.origin.append(x)
        elif x.__module__.partition(".")[0] in LIBRARIES:
            self.put("class", x.__module__, x.__qualname__)
        else:
            self._leave(x, f"the class {x.__qualname__}")

    def _space(self, x: Any) -> Any:
        """Spaces hold arrays, and a generator that does not count."""
        if type(x) not in SPACES:
            self._leave(x, f"a {type(x).__name__} space")
            return x
        self.put(type(x).__name__)
        made = copy.deepcopy(x)
        for name in SPACES[type(x)]:
            self.value(getattr(made, name))
        return made

    def function(self, x: FunctionType) -> FunctionType:
        """The copy of a function."""
        if x in self._open:
            self._leave(x, f"{x.__name__}, which calls itself")
            return self._copies[x]
        made = x if x in _contents else self._copies.get(x)
        if made is None:
            made = self._copy(x)
        self.add(_contents[made])
        self.origin.append(made)
        return made

    def _copy(self, x: FunctionType) -> FunctionType:
        inner = Freezer(self)
        scope: dict[str, Any] = {
            name: x.__globals__[name] for name in ("__name__", "__file__", "__builtins__") if name in x.__globals__
        }
        cells = tuple(CellType() for _ in x.__closure__ or ())
        made = FunctionType(x.__code__, scope, x.__name__, None, cells)
        self._open.append(x)
        self._copies[x] = made
        inner.origin += [x.__module__, x.__qualname__, scope.get("__file__")]
        inner.put("function", x.__name__)
        inner.reads += [(x, name, getattr(x, name)) for name in ("__code__", "__defaults__", "__kwdefaults__")]
        inner._code(x.__code__)
        made.__defaults__, made.__kwdefaults__ = inner.value(x.__defaults__), inner.value(x.__kwdefaults__)
        for cell, own in zip(x.__closure__ or (), cells, strict=True):
            try:
                held = cell.cell_contents
            except ValueError:
                inner._leave(x, "a variable without a value")
                continue
            inner.reads.append((cell, "cell_contents", held))
            own.cell_contents = inner.value(held)
        for name in _names_read(x.__code__):
            inner.put("reads", name)
            held = x.__globals__.get(name, MISSING)
            inner.reads.append((x.__globals__, name, held))
            if held is not MISSING:
                scope[name] = inner.value(held)
            elif hasattr(builtins, name):
                inner.value(getattr(builtins, name))
        made.__doc__, made.__module__, made.__qualname__ = x.__doc__, x.__module__, x.__qualname__
        self._open.pop()
        content = inner.content()
        if content.unknown is None:  # equal ones are one
            made = _functions.setdefault((content.digest, content.origin), made)
        self._copies[x] = made
        _contents[made], _modules[made] = content, x.__globals__
        return made

    def _code(self, x: CodeType) -> None:
        names = (x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars)
        self.put("code", x.co_code, x.co_argcount, x.co_kwonlyargcount, x.co_posonlyargcount, x.co_flags, names)
        self.put(x.co_exceptiontable)
        self.origin += [x.co_filename, x.co_firstlineno, x.co_linetable]  # for messages
        for constant in x.co_consts:
            self.value(constant)


def _is_current(original: Any, name: str | None, value: Any) -> bool:
    """Whether `original` still has that value by that name; an array, that content."""
    if original is MISSING:
        return False
    if isinstance(original, np.ndarray):
        same = (original.dtype, original.shape, original.flags.writeable) == (value.dtype, value.shape, value.flags.writeable)
        return same and bool(original.tobytes(order="A") == value.tobytes(order="A"))
    if isinstance(original, dict):
        return bool(original.get(name, MISSING) is value)
    return getattr(original, str(name), MISSING) is value


def description_of(kind: Any) -> str:
    """Name, fields, types and names of defaults of a NamedTuple class."""
    hints = get_type_hints(kind, include_extras=True)
    return repr((kind.__qualname__, kind._fields, hints, tuple(kind._field_defaults)))


@lru_cache(maxsize=1024)
def _names_read(code: CodeType) -> tuple[str, ...]:
    """The names that it, and what is defined in it, reads of its module."""
    found = {op.argval for op in dis.get_instructions(code) if op.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return tuple(sorted(found.union(*(_names_read(inner) for inner in code.co_consts if isinstance(inner, CodeType)))))
