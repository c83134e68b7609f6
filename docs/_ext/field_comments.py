"""How pages describe fields: by the comments behind those of a NamedTuple, which have no docstrings, and in whole sentences."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import textwrap
import tokenize
from typing import Any


def comments_of(kind: type[Any]) -> dict[str, str]:
    """{field: the comment behind it, "" without one} of a NamedTuple class, in the order of its fields."""
    source = textwrap.dedent(inspect.getsource(kind))
    words = {t.start[0]: t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT}
    (declared,) = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef)
    return {
        field.target.id: words.get(field.end_lineno or 0, "").removeprefix("#").strip()
        for field in declared.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _describe(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Puts a field's comment in the place of what Python says of each, "Alias for field number 0"."""
    if lines and lines[0].startswith("Alias for field number"):
        module, _, place = name.rpartition(".")
        kind = _found(module)
        comment = comments_of(kind).get(place, "") if kind is not None else ""
        lines[:] = [comment[:1].upper() + comment[1:] + "."] if comment else []


def _keep(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon, which takes what stands before the colon of an attribute's docstring for a type. Ours are sentences."""
    app.config.docstring_before_napoleon = list(lines)


def _restore(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """After it."""
    if what in ("attribute", "data", "property"):
        lines[:] = app.config.docstring_before_napoleon


def _found(place: str) -> type[Any] | None:
    """The class at "module.Name"."""
    module, _, name = place.rpartition(".")
    found = getattr(importlib.import_module(module), name, None)
    return found if inspect.isclass(found) else None


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _keep, priority=400)
    app.connect("autodoc-process-docstring", _restore, priority=600)
    app.connect("autodoc-process-docstring", _describe, priority=700)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
