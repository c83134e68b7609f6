"""Copies of an author's functions that no later assignment can change, each with a hash of its content.

A kernel is compiled from the copy, and stored under the copy's hash. So the hash is that of exactly what was compiled, even if
the constants, helper functions, arrays and closures of the module change later.

A function is copied with all that it reads: code, defaults, closure, and the names that it loads from its module, down to
numbers, arrays and further functions. Copies of equal content are one object within a process, so they share compiled code.
Objects that cannot be copied are used as they are. A copy that contains such an object has no hash, is not shared within the
process, and its compiled code is not stored on disk.
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
from typing import Any, NamedTuple, get_type_hints
from weakref import WeakKeyDictionary, WeakValueDictionary

import gymnasium as gym
import numpy as np

LIBRARIES = ("numpy", "math", "builtins", "cmath", "operator")  # modules whose names mean the same for one version of Python
CONSTANT_TYPES = (type(None), type(...), bool, int, str, bytes)
SPACE_FIELDS = {
    gym.spaces.Box: ("low", "high"),
    gym.spaces.Discrete: ("start", "n"),
    gym.spaces.MultiDiscrete: ("start", "nvec"),
}

MISSING = object()


class ReadValue(NamedTuple):
    """A value that was copied, and where it was read.

    Attributes:
        source: the object with the value: a function, a cell, the names of a module, or an array. MISSING for an object whose
            changes cannot be observed.
        name: the attribute of a function or a cell, or the name in a module; None for an array.
        value: the value of that name, MISSING if there was none; the copy of an array.
    """

    source: Any
    name: str | None
    value: Any

    def is_current(self) -> bool:
        """Whether the source still has this value."""
        if self.source is MISSING:
            return False
        if isinstance(self.source, np.ndarray):
            old, new = ((a.dtype, a.shape, a.flags.writeable, a.tobytes(order="A")) for a in (self.value, self.source))
            return old == new
        if isinstance(self.source, dict):
            return bool(self.source.get(self.name, MISSING) is self.value)
        return getattr(self.source, str(self.name), MISSING) is self.value


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a frozen copy.

    Attributes:
        digest: the hash of the content.
        unhashable: a description of the first part of the content that has no hash; None if all parts have one.
        origin: files, lines and classes. Copies that differ in these are different objects within a process, but share
            compiled code on disk.
        read_values: all values that were read and can change.
        classes: the NamedTuple classes, which are not copied, and the description of each by `describe_fields`.
    """

    digest: str
    unhashable: str | None
    origin: tuple[Any, ...]
    read_values: tuple[ReadValue, ...]
    classes: tuple[tuple[type, str], ...]

    def is_current(self) -> bool:
        """Whether the originals still have this content; False if only a new copy could show it."""
        return all(read_value.is_current() for read_value in self.read_values) and self.are_classes_current()

    def are_classes_current(self) -> bool:
        """Whether the NamedTuple classes still have the same fields, types and defaults."""
        return all(describe_fields(named_tuple) == description for named_tuple, description in self.classes)


def describe_fields(named_tuple: Any) -> str:
    """Returns as text the name, the fields, their types, and the names of those with a default of the class `named_tuple`."""
    hints = get_type_hints(named_tuple, include_extras=True)
    return repr((named_tuple.__qualname__, named_tuple._fields, hints, tuple(named_tuple._field_defaults)))


# The contents of frozen functions.
_contents: WeakKeyDictionary[FunctionType, Content] = WeakKeyDictionary()
# The global names of the modules in which the originals of frozen functions are defined.
_original_globals: WeakKeyDictionary[FunctionType, dict[str, Any]] = WeakKeyDictionary()
# Frozen functions by digest and origin.
_frozen_functions: WeakValueDictionary[Any, FunctionType] = WeakValueDictionary()


def frozen_function(function: FunctionType) -> FunctionType:
    """Returns the frozen copy of a plain `function`. The copy of a frozen function is itself."""
    return function if function in _contents else Freezer().copy_function(function)


def module_globals(function: Any) -> dict[str, Any]:
    """Returns the global names of the module in which `function`, or its original, is defined.

    They are for error messages alone, because their values can change after the copy.
    """
    names: dict[str, Any] = _original_globals.get(function, function.__globals__)
    return names


def content_of(function: FunctionType) -> Content:
    """Returns the content of a frozen `function`."""
    return _contents[function]


class Freezer:
    """Copies values and records the content of the copies.

    Attributes:
        unhashable, origin, read_values, classes: as in `Content`, of all values so far.
    """

    def __init__(self, caller: Freezer | None = None) -> None:
        self._hash = hashlib.sha256()
        self.unhashable: str | None = None
        self.origin: list[Any] = []
        self.read_values: list[ReadValue] = []
        self.classes: list[tuple[type, str]] = []
        self._copies: dict[FunctionType, FunctionType] = {} if caller is None else caller._copies  # by their originals
        self._functions_in_progress: list[FunctionType] = [] if caller is None else caller._functions_in_progress

    def content(self) -> Content:
        """Returns the content of all values so far."""
        classes = tuple(dict.fromkeys(self.classes))
        return Content(self._hash.hexdigest(), self.unhashable, tuple(self.origin), tuple(self.read_values), classes)

    def update(self, *values: Any) -> None:
        """Adds `values` to the hash, which `repr` must distinguish."""
        self._hash.update(repr(values).encode() + b"\n")

    def add_content(self, content: Content) -> None:
        """Adds the `content` of another copy, except for its origin."""
        self.update("content", content.digest)
        self.unhashable = self.unhashable or content.unhashable
        self.read_values += content.read_values
        self.classes += content.classes

    def add_unhashable(self, value: object, description: str) -> None:
        """Adds a `value` that cannot be copied, with a `description` for messages."""
        self.update("unknown", description)
        self.origin.append(id(value))
        self.unhashable = self.unhashable or description

    def add_dtype(self, dtype: np.dtype[Any]) -> None:
        """Adds the NumPy type `dtype` and the types of its fields."""
        scalar_name = dtype.type.__name__
        self.update(
            "dtype", dtype.str, dtype.itemsize, dtype.alignment, dtype.isalignedstruct, dtype.shape, dtype.names, scalar_name
        )
        if dtype.subdtype is not None:
            self.add_dtype(dtype.subdtype[0])
        for name in dtype.names or ():
            field, offset = dtype.fields[name][:2]  # type: ignore[index]  # a dtype with names has fields
            self.update(offset)
            self.add_dtype(field)

    def copy_value(self, value: Any) -> Any:
        """Adds `value` and returns its copy, which is `value` itself if it cannot change or cannot be copied."""
        value_type = type(value)
        if value_type in CONSTANT_TYPES:
            self.update(value_type.__name__, value)
        elif value_type is float:
            self.update("float", struct.pack("<d", value))
        elif value_type is complex:
            self.update("complex", struct.pack("<2d", value.real, value.imag))
        elif isinstance(value, enum.Enum):
            self._add_class(value_type)
            self.update("member", value.name)
        elif value_type is np.ndarray or (isinstance(value, np.generic) and value.dtype != object):
            return self._copy_array(value)
        elif isinstance(value, np.dtype):
            self.add_dtype(value)
        elif isinstance(value, tuple | list | dict | frozenset):
            return self._copy_container(value)
        elif isinstance(value, FunctionType):
            return self.copy_function(value)
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, gym.Space):
            return self._copy_space(value)
        elif isinstance(value, BuiltinFunctionType | np.ufunc | ModuleType):
            self._add_library_name(value)
        else:
            self.add_unhashable(value, f"a {value_type.__module__}.{value_type.__qualname__}")
        return value

    def _copy_array(self, original: Any) -> Any:
        """Adds and copies an array or a NumPy scalar."""
        if original.dtype.hasobject:
            self.add_unhashable(original, "an array of objects")
            return original
        array = original.copy(order="K") if isinstance(original, np.ndarray) else original.copy()
        self.add_dtype(array.dtype)
        self.update("array", type(array).__name__, array.shape, array.strides, original.flags.writeable)
        self.update(array.tobytes(order="A") if isinstance(array, np.ndarray) else array.tobytes())
        if isinstance(array, np.ndarray):
            # Whether an array is writeable is part of its type in Numba.
            array.flags.writeable = original.flags.writeable
            self.read_values.append(ReadValue(original, None, array))
        return array

    def _copy_container(self, original: Any) -> Any:
        """Adds and copies a tuple, a NamedTuple, a list, a dict or a frozenset, and its elements."""
        container_type = type(original)
        is_named_tuple = issubclass(container_type, tuple) and hasattr(container_type, "_fields")
        if container_type not in (tuple, list, dict, frozenset) and not is_named_tuple:
            self.add_unhashable(original, f"a {container_type.__module__}.{container_type.__qualname__}")
            return original
        self.update(container_type.__name__, len(original))
        if is_named_tuple:
            self._add_class(container_type)
            return container_type._make(map(self.copy_value, original))
        if isinstance(original, frozenset):
            for element in sorted(original, key=repr):
                self.copy_value(element)
            return original
        # A later assignment to an element of a list or a dict cannot be observed.
        if container_type is not tuple:
            self.read_values.append(ReadValue(MISSING, None, None))
        # The order of a dict is part of its content: agents are numbered by the order of the roles.
        if isinstance(original, dict):
            return {self.copy_value(name): self.copy_value(element) for name, element in original.items()}
        return container_type(map(self.copy_value, original))

    def _add_library_name(self, value: Any) -> None:
        """Adds a module, a builtin function or a ufunc of a library, which its name identifies."""
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "numpy"
        owner = getattr(value, "__self__", None)
        is_method = owner is not None and not isinstance(owner, ModuleType)
        is_other_ufunc = isinstance(value, np.ufunc) and getattr(np, value.__name__, None) is not value
        if is_method or is_other_ufunc or module.partition(".")[0] not in LIBRARIES:
            self.add_unhashable(value, f"{module}, a module that may change" if isinstance(value, ModuleType) else f"{value!r}")
        self.update("library", module, value.__name__)

    def _add_class(self, cls: type) -> None:
        if issubclass(cls, enum.Enum):
            self.update("enum", cls.__qualname__, [base.__name__ for base in cls.__mro__])
            for name, enum_member in cls.__members__.items():
                self.update(name, enum_member.name)
                self.copy_value(enum_member.value)
            self.origin.append(cls)
        elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
            # A field can have a type that only a function defines, so that its name has no meaning here.
            try:
                description = describe_fields(cls)
            except NameError as error:
                self.add_unhashable(cls, f"the types of {cls.__qualname__}: {error}")
                return
            self.update("fields", description)
            self.classes.append((cls, description))
            for value in cls._field_defaults.values():  # type: ignore[attr-defined]  # of a NamedTuple
                self.copy_value(value)
            self.origin.append(cls)
        elif cls.__module__.partition(".")[0] in LIBRARIES:
            self.update("class", cls.__module__, cls.__qualname__)
        else:
            self.add_unhashable(cls, f"the class {cls.__qualname__}")

    def _copy_space(self, original: Any) -> Any:
        """Adds and copies a space with its arrays. Its random generator is not part of the content."""
        if type(original) not in SPACE_FIELDS:
            self.add_unhashable(original, f"a {type(original).__name__} space")
            return original
        self.update(type(original).__name__)
        space = copy.deepcopy(original)
        for name in SPACE_FIELDS[type(original)]:
            self.copy_value(getattr(space, name))
        return space

    def copy_function(self, original: FunctionType) -> FunctionType:
        """Adds the function `original` and returns its copy."""
        if original in self._functions_in_progress:
            self.add_unhashable(original, f"{original.__name__}, which calls itself")
            return self._copies[original]
        function = original if original in _contents else self._copies.get(original)
        if function is None:
            function = self._make_copy(original)
        self.add_content(_contents[function])
        self.origin.append(function)
        return function

    def _make_copy(self, original: FunctionType) -> FunctionType:
        """Copies a function that neither this freezer nor an earlier one has copied."""
        freezer = Freezer(self)
        scope: dict[str, Any] = {
            name: original.__globals__[name]
            for name in ("__name__", "__file__", "__builtins__")
            if name in original.__globals__
        }
        cells = tuple(CellType() for _ in original.__closure__ or ())
        function = FunctionType(original.__code__, scope, original.__name__, None, cells)
        self._functions_in_progress.append(original)
        self._copies[original] = function
        freezer.origin += [original.__module__, original.__qualname__, scope.get("__file__")]
        freezer.update("function", original.__name__)
        attributes = ("__code__", "__defaults__", "__kwdefaults__")
        freezer.read_values += [ReadValue(original, name, getattr(original, name)) for name in attributes]
        freezer._add_code(original.__code__)
        function.__defaults__ = freezer.copy_value(original.__defaults__)
        function.__kwdefaults__ = freezer.copy_value(original.__kwdefaults__)
        for original_cell, cell in zip(original.__closure__ or (), cells, strict=True):
            try:
                value = original_cell.cell_contents
            except ValueError:
                freezer.add_unhashable(original, "a variable without a value")
                continue
            freezer.read_values.append(ReadValue(original_cell, "cell_contents", value))
            cell.cell_contents = freezer.copy_value(value)
        for name in _global_names(original.__code__):
            freezer.update("reads", name)
            value = original.__globals__.get(name, MISSING)
            freezer.read_values.append(ReadValue(original.__globals__, name, value))
            if value is not MISSING:
                scope[name] = freezer.copy_value(value)
            elif hasattr(builtins, name):
                freezer.copy_value(getattr(builtins, name))
        for name in ("__doc__", "__module__", "__qualname__"):
            setattr(function, name, getattr(original, name))
        self._functions_in_progress.pop()
        content = freezer.content()
        if content.unhashable is None:
            function = _frozen_functions.setdefault((content.digest, content.origin), function)
        self._copies[original] = function
        _contents[function], _original_globals[function] = content, original.__globals__
        return function

    def _add_code(self, code: CodeType) -> None:
        self.update(
            "code", code.co_code, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags,
            (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        )  # fmt: skip
        self.update(code.co_exceptiontable)
        # Error messages show these.
        self.origin += [code.co_filename, code.co_firstlineno, code.co_linetable]
        for constant in code.co_consts:
            self.copy_value(constant)


@lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Returns the global names that `code`, and the code of functions defined in it, reads."""
    names = {op.argval for op in dis.get_instructions(code) if op.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return tuple(sorted(names.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))))
