"""Checks of values against the type annotations of settings."""

from __future__ import annotations

import dataclasses
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

TYPE_NAMES = {bool: "True or False", int: "an integer", float: "a number", str: "text", NoneType: "None"}
FLOAT32_MAX = 3.4028234663852886e38


def setting_types(settings: type) -> dict[str, Any]:
    """Returns {name: type} of the fields of `settings`, a dataclass."""
    hints = get_type_hints(settings)
    return {field.name: hints[field.name] for field in dataclasses.fields(settings)}


def is_setting_type(hint: Any) -> bool:
    """Returns whether `matches_type` knows the type `hint`, whose values are data that files store."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return all(type(part) in TYPE_NAMES for part in parts)
    if origin in (Union, UnionType, tuple, dict):
        return all(part is ... or is_setting_type(part) for part in parts)
    return hint in TYPE_NAMES


def matches_type(value: object, hint: Any) -> bool:
    """Returns whether `value` is of the type `hint`.

    An int is a float, a bool is neither an int nor a float, and a list is a tuple.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(matches_type(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        types = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(value) == len(types) and all(map(matches_type, value, types))
    if origin is dict:
        return isinstance(value, dict) and all(
            matches_type(k, parts[0]) and matches_type(v, parts[1]) for k, v in value.items()
        )
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def with_tuples(value: Any) -> Any:
    """Returns the same nesting with tuples in place of lists, which JSON has for them."""
    if isinstance(value, dict):
        return {key: with_tuples(element) for key, element in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def is_finite(value: object) -> bool:
    """Returns whether all numbers in `value`, a setting of a checked type, are finite as float32, in which learners compute."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, tuple | list):
        return all(map(is_finite, value))
    return not isinstance(value, float | int) or abs(value) <= FLOAT32_MAX


def describe_type(hint: Any) -> str:
    """Returns the type `hint` in words, for a message."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, parts))
    if origin is Literal:
        return " or ".join(map(str, parts))
    if origin is tuple:
        element_types = ", ".join(describe_type(part) for part in parts if part is not ...)
        return f"a tuple of ({element_types})" + (" each" if ... in parts else "")
    if origin is dict:
        return f"a dict of {describe_type(parts[0])} and {describe_type(parts[1])}"
    return TYPE_NAMES.get(hint, str(hint))
