#!/usr/bin/env python3
"""Counts what makes code hard to read, against the limits of CONTRIBUTING.md.

    tools/measure_code.py              a line for each measure: its value and its limit
    tools/measure_code.py --list NAME  every place that counts, as file:line and what stands there
    tools/measure_code.py --json FILE  the values, for a comparison with another commit

The exit status is the number of measures beyond their limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "src", ROOT / "envs")
LONGEST_FUNCTION = 60  # lines
DEEPEST_NESTING = 2  # functions inside a function
ARRAYS = ("Tensor", "NDArray", "ndarray", "Array")  # annotations whose docstring gives a shape
SHAPE = re.compile(r"\((?:[A-Z]|\d+)(?:[-+* ]+\w+)*(?:, ?(?:\.\.\.|[\w*+ -]+))*,?\)|(?<=\s)\((?:\.\.\.)?\)")
ENTRY = re.compile(r"^\| (?P<retired>.+?) \| (?P<use>.+?) \|$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """Something that counts."""

    file: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.what}"


class Module(NamedTuple):
    """A parsed source file."""

    file: Path
    tree: ast.Module

    @property
    def package(self) -> Path:
        """The folder of the file."""
        return self.file.parent

    def functions(self) -> Iterator[Function]:
        """All functions and methods, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        """All classes, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


def load_modules() -> list[Module]:
    """Every module of the package and of the bundled environments; templates of new environments are text, not modules."""
    files = (file for folder in SOURCES for file in sorted(folder.rglob("*.py")) if "templates" not in file.parts)
    return [Module(file, ast.parse(file.read_text())) for file in files]


def parameters(function: Function) -> list[ast.arg]:
    """The parameters of a function, without `self` and `cls`."""
    a = function.args
    named = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    return [p for p in named if p.arg not in ("self", "cls")]


def long_functions(modules: list[Module]) -> Iterator[Place]:
    """Functions of more lines than fit on a screen."""
    for module in modules:
        for f in module.functions():
            lines = (f.end_lineno or f.lineno) - f.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield Place(module.file, f.lineno, f"{f.name}, {lines} lines")


def deep_functions(modules: list[Module]) -> Iterator[Place]:
    """Functions inside more functions than a reader can keep in mind."""

    def walk(module: Module, node: ast.AST, depth: int) -> Iterator[Place]:
        for child in ast.iter_child_nodes(node):
            inside = depth + isinstance(child, Function)
            if isinstance(child, Function) and depth > DEEPEST_NESTING:
                yield Place(module.file, child.lineno, child.name)
            yield from walk(module, child, inside)

    for module in modules:
        yield from walk(module, module.tree, 0)


def any_parameters(modules: list[Module]) -> Iterator[Place]:
    """Parameters of the package that are annotated as `Any` and nothing else."""
    for module in modules:
        for f in module.functions():
            for p in parameters(f):
                if isinstance(p.annotation, ast.Name) and p.annotation.id == "Any":
                    yield Place(module.file, p.lineno, f"{f.name}({p.arg})")


def count_parameters(modules: list[Module]) -> int:
    """How many parameters all functions have."""
    return sum(len(parameters(f)) for module in modules for f in module.functions())


def repeated(places: dict[str, list[Place]]) -> Iterator[Place]:
    """The places of names that occur more than once."""
    return (place for name in sorted(places) if len(places[name]) > 1 for place in places[name])


def duplicate_modules(modules: list[Module]) -> Iterator[Place]:
    """Modules with the name of another one."""
    names = defaultdict(list)
    for module in modules:
        if not module.file.stem.startswith("__"):
            names[module.file.stem].append(Place(module.file, 1, module.file.stem))
    return repeated(names)


def duplicate_classes(modules: list[Module]) -> Iterator[Place]:
    """Classes with the name of another one; environments each have their own `State` and `Params`."""
    names = defaultdict(list)
    for module in modules:
        for c in module.classes():
            if c.name not in ("State", "Params"):
                names[c.name].append(Place(module.file, c.lineno, c.name))
    return repeated(names)


def private_access(modules: list[Module]) -> Iterator[Place]:
    """Names with an underscore that only another folder of the project defines; those of libraries do not count."""
    defined: dict[Path, set[str]] = defaultdict(set)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, Function | ast.ClassDef):
                defined[module.package].add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                defined[module.package].add(node.attr if isinstance(node, ast.Attribute) else node.id)
    private = {name for names in defined.values() for name in names if re.match(r"_[^_]", name)}
    for module in modules:
        foreign = private - defined[module.package]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in foreign:
                yield Place(module.file, node.lineno, ast.unparse(node))
            elif isinstance(node, ast.ImportFrom):
                yield from (Place(module.file, node.lineno, alias.name) for alias in node.names if alias.name in foreign)


def incomplete_docstrings(modules: list[Module]) -> Iterator[Place]:
    """Public functions whose docstring is missing, leaves a parameter out, or gives an array no shape.

    Module-level functions of the bundled environments do not count: they are fields of `SingleAgentEnv` or `MultiAgentEnv`,
    whose docstrings in `gpuvec/spec.py` say once what each takes and returns, and formulas that such functions share.
    """
    for module in modules:
        for f, owner in public_functions(module):
            text, name = ast.get_docstring(f) or "", f"{owner}{f.name}"
            if not owner and module.file.is_relative_to(ROOT / "envs"):
                continue
            missing = [p.arg for p in parameters(f) if not re.search(rf"\b{p.arg}\b", text)]
            arrays = [p.arg for p in parameters(f) if p.annotation and ast.unparse(p.annotation).split(".")[-1] in ARRAYS]
            if not text:
                yield Place(module.file, f.lineno, f"{name} has none")
            elif missing:
                yield Place(module.file, f.lineno, f"{name} says nothing of {', '.join(missing)}")
            elif arrays and not SHAPE.search(text):
                yield Place(module.file, f.lineno, f"{name} gives no shape of {', '.join(arrays)}")


def public_functions(module: Module) -> Iterator[tuple[Function, str]]:
    """(function, "Class." or "") of what may be used from outside: of a module, or of a public class in it."""
    for node in module.tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node, ""
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((f, f"{node.name}.") for f in node.body if isinstance(f, Function) and not f.name.startswith("_"))


def retired_words(modules: list[Module]) -> Iterator[Place]:
    """Words of the glossary's left column, in code, comments and documents; a term in backquotes counts as a name alone."""
    names, phrases = glossary()
    phrase = re.compile(rf"\b({'|'.join(map(re.escape, sorted(phrases, key=len, reverse=True)))})\b", re.IGNORECASE)
    for module in modules:
        text = module.file.read_text()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and token.string in names:
                yield Place(module.file, token.start[0], token.string)
        yield from (Place(module.file, line, found) for line, found in matches(phrase, text))
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.py"))]
    quoted = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names)))})\b")
    for file in documents:
        if "generated" not in file.parts:
            text = file.read_text()
            yield from (Place(file, line, found) for line, found in matches(phrase, text))
            for number, line in enumerate(text.splitlines(), 1):
                for code in re.findall(r"`([^`]+)`", line):
                    yield from (Place(file, number, found) for found in quoted.findall(code))


def matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    """(line, what was found) for every match."""
    return ((number, found[0]) for number, line in enumerate(text.splitlines(), 1) for found in pattern.finditer(line))


def glossary() -> tuple[set[str], set[str]]:
    """(names, phrases) that the table "Retired terms" of CONTRIBUTING.md lists: in backquotes, and in double quotes."""
    names, phrases = set(), set()
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Retired terms\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if entry := ENTRY.match(line):
            names |= set(re.findall(r"`([^`]+)`", entry["retired"]))
            phrases |= set(re.findall(r'"([^"]+)"', entry["retired"]))
    if not names:
        sys.exit("CONTRIBUTING.md has no table under '## Retired terms', which lists the words that are no longer used.")
    return names, phrases


class Measure(NamedTuple):
    """A count with its limit."""

    find: Callable[[list[Module]], Iterator[Place]]
    limit: float
    of: Callable[[list[Module]], int] | None = None  # the value is a share of this, in percent


MEASURES = {
    "long_functions": Measure(long_functions, 0),
    "deep_functions": Measure(deep_functions, 0),
    "any_parameters_percent": Measure(any_parameters, 10.0, count_parameters),
    "duplicate_modules": Measure(duplicate_modules, 0),
    "duplicate_classes": Measure(duplicate_classes, 0),
    "private_access": Measure(private_access, 0),
    "incomplete_docstrings": Measure(incomplete_docstrings, 0),
    "retired_words": Measure(retired_words, 0),
}


def main() -> int:
    """Prints the measures; returns how many are beyond their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=MEASURES, metavar="NAME", help=f"one of {', '.join(MEASURES)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    modules = load_modules()
    if given.list:
        print(*MEASURES[given.list].find(modules), sep="\n")
        return 0
    values, beyond = {}, 0
    for name, measure in MEASURES.items():
        count = len(list(measure.find(modules)))
        values[name] = round(100 * count / measure.of(modules), 1) if measure.of else count
        beyond += values[name] > measure.limit
        print(f"{name:24} {values[name]:>8}   at most {measure.limit:g}")
    values["source_lines"] = sum(len(module.file.read_text().splitlines()) for module in modules)
    print(f"{'source_lines':24} {values['source_lines']:>8}")
    if given.json:
        given.json.write_text(json.dumps(values, indent=1) + "\n")
    return beyond


if __name__ == "__main__":
    sys.exit(main())
