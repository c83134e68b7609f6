"""The content of frozen copies: its hash, and what shows whether the originals still have this content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np

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
        source, value = self.source, self.value
        if source is MISSING:
            return False
        if isinstance(source, np.ndarray):
            same_type = (source.dtype, source.shape, source.flags.writeable) == (
                value.dtype,
                value.shape,
                value.flags.writeable,
            )
            return same_type and bool(source.tobytes(order="A") == value.tobytes(order="A"))
        if isinstance(source, dict):
            return bool(source.get(self.name, MISSING) is value)
        return getattr(source, str(self.name), MISSING) is value


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


class ContentBuilder:
    """Builds the `Content` of values that are added one after the other.

    Attributes:
        unhashable, origin, read_values, classes: as in `Content`, of all values so far.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.unhashable: str | None = None
        self.origin: list[Any] = []
        self.read_values: list[ReadValue] = []
        self.classes: list[tuple[type, str]] = []

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


def describe_fields(named_tuple: Any) -> str:
    """Returns as text the name, the fields, their types, and the names of those with a default of the class `named_tuple`."""
    hints = get_type_hints(named_tuple, include_extras=True)
    return repr((named_tuple.__qualname__, named_tuple._fields, hints, tuple(named_tuple._field_defaults)))
