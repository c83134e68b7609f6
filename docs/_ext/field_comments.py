"""Describes the fields of a NamedTuple by the comments behind them, if they have no docstrings."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from gpuvec.cli.envs_command import comments_of


def _describe(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replaces the docstring that Python generates for a field, "Alias for field number 0", by the field's comment."""
    if lines and lines[0].startswith("Alias for field number"):
        class_path, _, field = name.rpartition(".")
        kind = _import_class(class_path)
        comment = comments_of(kind).get(field, "") if kind is not None else ""
        lines[:] = [comment[:1].upper() + comment[1:] + "."] if comment else []


def _keep(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Stores a docstring before napoleon changes it: in that of an attribute it takes the words before a colon for a type."""
    app.config.docstring_before_napoleon = list(lines)


def _restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Restores the docstring of an attribute after napoleon."""
    if what in ("attribute", "data", "property"):
        lines[:] = app.config.docstring_before_napoleon


def _import_class(class_path: str) -> type[Any] | None:
    """The class "module.Name", or None if that is no class."""
    module, _, name = class_path.rpartition(".")
    value = getattr(importlib.import_module(module), name, None)
    return value if inspect.isclass(value) else None


def setup(app: Any) -> dict[str, bool]:
    """Registers the functions of this extension with Sphinx."""
    app.connect("autodoc-process-docstring", _keep, priority=400)
    app.connect("autodoc-process-docstring", _restore, priority=600)
    app.connect("autodoc-process-docstring", _describe, priority=700)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
