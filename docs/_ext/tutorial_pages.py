"""Pages and notebooks of the tutorials, with what these print: building the site runs them.

A tutorial is a script in jupytext's percent format. Here each is the module of its name, run cell by cell in a process that
others share: so what is imported and compiled once serves all, and nothing waits for a kernel of Jupyter's to start.
"""

from __future__ import annotations

import ast
import base64
import io
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import jupytext
from nbformat.v4 import new_output
from repository_pages import PAGES, TUTORIALS, keep, relinked
from sphinx.util import logging

logger = logging.getLogger(__name__)
FORMATS = ("text/html", "image/png", "text/plain")  # in which a value is shown, the first that it has


def executed(file: Path) -> Any:
    """The tutorial as a notebook, with outputs.

    Raises:
        Exception: whatever the tutorial raises, with its file and line.
    """
    notebook, text, at = jupytext.read(file), file.read_text(), 0
    module = sys.modules[file.stem] = ModuleType(file.stem)
    module.__file__ = str(file)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            at = text.index(cell.source, at)
            cell.outputs = run("\n" * text.count("\n", 0, at) + cell.source, module)
    return notebook


def run(source: str, module: ModuleType) -> list[Any]:
    """Runs a cell, and gives its outputs: what it prints, and the value of an expression at its end."""
    file = str(module.__file__)
    *statements, last = ast.parse(source, file).body
    if not isinstance(last, ast.Expr):
        statements.append(last)
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(statements, []), file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  # a tutorial
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval", dont_inherit=True), module.__dict__)  # noqa: S307
    outputs = [new_output("stream", name="stdout", text=printed.getvalue())] if printed.getvalue() else []
    return outputs if value is None else [*outputs, new_output("display_data", data=shown(value))]


def shown(value: Any) -> dict[str, str]:
    """{MIME type: data} of a value, by the methods that IPython asks for it."""
    data = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_()
    if hasattr(value, "_repr_png_"):
        data["image/png"] = base64.b64encode(value._repr_png_()).decode()
    return data


def page(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as MyST, and the pictures in it by their file names."""
    blocks, pictures = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            blocks.append(cell.source)
            continue
        blocks.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data") or {"text/plain": output.text}
            kind = next(kind for kind in FORMATS if kind in data)
            if kind == "image/png":
                file = f"{name}-{len(pictures)}.png"
                pictures[file] = base64.b64decode(data[kind])
                blocks.append(f"![what the code above shows]({file})")
            elif kind == "text/html":
                blocks.append(f"```{{raw}} html\n{data[kind]}\n```")
            else:
                blocks.append(f"````{{code-block}} text\n:class: printed\n\n{data[kind].rstrip()}\n````")
    return "\n\n".join(blocks) + "\n", pictures


def make(file: Path) -> str:
    """Runs a tutorial and writes its page, pictures and notebook; returns its name."""
    notebook, place = executed(file), PAGES[file]
    text, pictures = page(notebook, file.stem)
    for name, data in pictures.items():
        keep(place.with_name(name), data)
    keep(place.with_suffix(".ipynb"), jupytext.writes(notebook, fmt="ipynb"))
    keep(place, relinked(text, file, place, generated=pictures))
    return file.stem


def write(app: Any) -> None:
    """Runs all tutorials, those that are long first, as many at a time as there are cores."""
    if not app.config.execute_tutorials:
        return
    longest = sorted(TUTORIALS, key=lambda file: -file.stat().st_size)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for name in pool.map(make, longest):
            logger.info("ran the tutorial %s", name)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_config_value("execute_tutorials", True, "", bool)  # without, pages of an earlier build are taken
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
