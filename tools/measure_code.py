#!/usr/bin/env python3
"""Counts what makes code hard to read, and compares the counts with their limits.

    tools/measure_code.py              prints the value and the limit of each measure
    tools/measure_code.py --list NAME  prints every place that a measure counts, as file:line: text
    tools/measure_code.py --json FILE  writes the values, which can be compared with those of another commit

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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "src", ROOT / "envs")
USERS = (*SOURCES, ROOT / "benchmarks", ROOT / "tools")  # whose imports and uses of names count
PACKAGE = ROOT / "src" / "gpuvec"
SMALL_MODULE_LINES = 120
MAX_FUNCTION_LINES = 100
MAX_NESTING = 2  # functions inside functions
ARRAYS = ("Tensor", "NDArray", "ndarray", "Array")  # annotations whose docstring gives a shape
SHAPE = re.compile(r"\((?:[A-Z]|\d+)(?:[-+* ]+\w+)*(?:, ?(?:\.\.\.|[\w*+ -]+))*,?\)|(?<=\s)\((?:\.\.\.)?\)")
MESSAGE_WORDS = 6  # A term in backquotes with so many words is a message of the package, whose words are no names.
ENTRY = re.compile(r"^\| (?P<retired>.+?) \| (?P<use>.+?) \|$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A place that a measure counts."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.text}"


class Module(NamedTuple):
    """A parsed source file."""

    file: Path
    tree: ast.Module

    @property
    def package(self) -> Path:
        """The folder of the file."""
        return self.file.parent

    def functions(self) -> Iterator[Function]:
        """Yields all functions and methods, also nested ones."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yields all classes, also nested ones."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


@cache
def load_modules(folders: tuple[Path, ...] = SOURCES) -> list[Module]:
    """Returns all modules in folders, without the templates of new environments."""
    files = (file for folder in folders for file in sorted(folder.rglob("*.py")) if "templates" not in file.parts)
    return [Module(file, ast.parse(file.read_text())) for file in files]


def inside(modules: list[Module], folder: str) -> list[Module]:
    """Returns those `modules` that are in a folder of the package; "" is the package."""
    return [module for module in modules if module.file.is_relative_to(PACKAGE / folder)]


def code_lines(modules: list[Module], folders: tuple[str, ...]) -> Iterator[Place]:
    """Yields the lines of code: those that are not blank, only a comment, or part of a docstring."""
    for module in (module for folder in folders for module in inside(modules, folder)):
        documented: set[int] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                for statement in node.body:  # docstrings of attributes are among them
                    if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
                        documented.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
        for number, line in enumerate(module.file.read_text().split("\n"), 1):
            if number not in documented and line.strip() and not line.strip().startswith("#"):
                yield Place(module.file, number, line.strip())


def single_importers(modules: list[Module]) -> Iterator[Place]:
    """Yields small modules of the package that exactly one other module imports."""
    files = {module.file for module in modules}
    importers: dict[Path, set[Path]] = defaultdict(set)
    for user in load_modules(USERS):
        for node in ast.walk(user.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gpuvec"):
                base = ROOT / "src" / node.module.replace(".", "/")
                for alias in node.names:
                    found = (base / f"{alias.name}.py", base.with_name(f"{base.name}.py"), base / "__init__.py")
                    importers[next((file for file in found if file in files), base)].add(user.file)
    for module in inside(modules, ""):
        lines = module.file.read_text().count("\n")
        if not module.file.stem.startswith("__") and lines < SMALL_MODULE_LINES and len(importers[module.file]) == 1:
            yield Place(module.file, 1, f"{lines} lines, imported by {importers[module.file].pop().relative_to(ROOT)}")


@cache
def uses() -> Counter[str]:
    """How often each name is read, as a variable or as an attribute."""
    nodes = (node for module in load_modules(USERS) for node in ast.walk(module.tree))
    names = (node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load))
    return Counter(node.id if isinstance(node, ast.Name) else node.attr for node in names)


def functions_used_once(modules: list[Module], folder: str) -> Iterator[Place]:
    """Yields functions in a folder of the package whose names are read at most once."""
    for module in inside(modules, folder):
        for f in module.functions():
            if not f.name.startswith("__") and uses()[f.name] <= 1:
                yield Place(module.file, f.lineno, f.name)


def nested_functions(modules: list[Module], folder: str) -> Iterator[Place]:
    """Yields functions in a folder of the package once for each function around them."""
    for module in inside(modules, folder):
        for f in module.functions():
            yield from (Place(module.file, n.lineno, n.name) for n in ast.walk(f) if n is not f and isinstance(n, Function))


def count_functions(modules: list[Module], folder: str) -> int:
    """Returns how many functions a folder of the package has."""
    return sum(1 for module in inside(modules, folder) for _ in module.functions())


def alias_names(modules: list[Module]) -> Iterator[Place]:
    """Yields names that a tuple of attributes is assigned to."""
    for module in inside(modules, ""):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                elements = node.value.elts
                if all(isinstance(element, ast.Attribute) for element in elements):
                    yield from (Place(module.file, node.lineno, ast.unparse(element)) for element in elements)


def deep_classes(modules: list[Module]) -> Iterator[Place]:
    """Yields the classes of the longest chain of inheritance within the package."""
    places, bases = {}, {}
    for module in inside(modules, ""):
        for c in module.classes():
            places[c.name] = Place(module.file, c.lineno, c.name)
            bases[c.name] = [base.id for base in c.bases if isinstance(base, ast.Name)]

    def chain(name: str, names: tuple[str, ...] = ()) -> tuple[str, ...]:
        if name not in bases or name in names:
            return names
        return max((chain(base, (*names, name)) for base in bases[name]), key=len, default=(*names, name))

    return (places[name] for name in max(map(chain, bases), key=len))


def schema_calls(modules: list[Module]) -> Iterator[Place]:
    """Yields calls of `make_schema`."""
    for module in inside(modules, ""):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and "make_schema" in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
                yield Place(module.file, node.lineno, ast.unparse(node))


def parameters(function: Function) -> list[ast.arg]:
    """Returns the parameters of a `function`, without `self` and `cls`."""
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    return [parameter for parameter in named if parameter.arg not in ("self", "cls")]


def long_functions(modules: list[Module]) -> Iterator[Place]:
    """Yields functions of `modules` with too many lines."""
    for module in modules:
        for f in module.functions():
            lines = (f.end_lineno or f.lineno) - f.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield Place(module.file, f.lineno, f"{f.name}, {lines} lines")


def deep_functions(modules: list[Module]) -> Iterator[Place]:
    """Yields functions of `modules` that are inside too many other functions."""

    def walk(module: Module, node: ast.AST, depth: int) -> Iterator[Place]:
        for child in ast.iter_child_nodes(node):
            inside = depth + isinstance(child, Function)
            if isinstance(child, Function) and depth > MAX_NESTING:
                yield Place(module.file, child.lineno, child.name)
            yield from walk(module, child, inside)

    for module in modules:
        yield from walk(module, module.tree, 0)


def any_parameters(modules: list[Module]) -> Iterator[Place]:
    """Yields parameters of functions in `modules` whose annotation is `Any`."""
    for module in modules:
        for f in module.functions():
            for p in parameters(f):
                if isinstance(p.annotation, ast.Name) and p.annotation.id == "Any":
                    yield Place(module.file, p.lineno, f"{f.name}({p.arg})")


def count_parameters(modules: list[Module]) -> int:
    """Returns how many parameters all functions of `modules` have."""
    return sum(len(parameters(f)) for module in modules for f in module.functions())


def repeated(places: dict[str, list[Place]]) -> Iterator[Place]:
    """Yields the `places`, {name: places}, of names that occur more than once."""
    return (place for name in sorted(places) if len(places[name]) > 1 for place in places[name])


def duplicate_modules(modules: list[Module]) -> Iterator[Place]:
    """Yields `modules` with the name of another one."""
    names = defaultdict(list)
    for module in modules:
        if not module.file.stem.startswith("__"):
            names[module.file.stem].append(Place(module.file, 1, module.file.stem))
    return repeated(names)


def duplicate_classes(modules: list[Module]) -> Iterator[Place]:
    """Yields classes of `modules` with the name of another one; each environment has its own `State` and the like."""
    names = defaultdict(list)
    for module in modules:
        for c in module.classes():
            if c.name not in ("State", "Params", "ParamsWithTables", "Metrics"):
                names[c.name].append(Place(module.file, c.lineno, c.name))
    return repeated(names)


def private_access(modules: list[Module]) -> Iterator[Place]:
    """Yields uses of private names in `modules` of other folders than those that define the names.

    Private names that no module defines, which are those of libraries, do not count.
    """
    defined: dict[Path, set[str]] = defaultdict(set)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, Function | ast.ClassDef):
                defined[module.package].add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                defined[module.package].add(node.attr if isinstance(node, ast.Attribute) else node.id)
    private = {name for names in defined.values() for name in names if re.match(r"_[^_]", name)}
    for module in modules:
        defined_elsewhere = private - defined[module.package]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in defined_elsewhere:
                yield Place(module.file, node.lineno, ast.unparse(node))
            elif isinstance(node, ast.ImportFrom):
                yield from (
                    Place(module.file, node.lineno, alias.name) for alias in node.names if alias.name in defined_elsewhere
                )


def incomplete_docstrings(modules: list[Module]) -> Iterator[Place]:
    """Yields public functions of `modules` whose docstring is missing, or gives no shape of an array.

    A docstring may leave out a parameter whose name and type say what it is.

    Module-level functions of the bundled environments do not count: they are fields of `SingleAgentEnv` or `MultiAgentEnv`,
    whose docstrings in `gpuvec/spec.py` say once what each takes and returns, and formulas that such functions share.
    """
    for module in modules:
        for f, owner in public_functions(module):
            text, name = ast.get_docstring(f) or "", f"{owner}{f.name}"
            if not owner and module.file.is_relative_to(ROOT / "envs"):
                continue
            arrays = [p.arg for p in parameters(f) if p.annotation and ast.unparse(p.annotation).split(".")[-1] in ARRAYS]
            if not text:
                yield Place(module.file, f.lineno, f"{name} has none")
            elif arrays and not SHAPE.search(text):
                yield Place(module.file, f.lineno, f"{name} gives no shape of {', '.join(arrays)}")


def public_functions(module: Module) -> Iterator[tuple[Function, str]]:
    """Yields (function, "Class." or "") of the public functions of a `module` and of its public classes."""
    for node in module.tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node, ""
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((f, f"{node.name}.") for f in node.body if isinstance(f, Function) and not f.name.startswith("_"))


def retired_words(modules: list[Module]) -> Iterator[Place]:
    """Yields retired words in `modules` and in documents; a term in backquotes counts only as a name."""
    names, phrases = glossary()
    phrase = re.compile(rf"\b({'|'.join(map(re.escape, sorted(phrases, key=len, reverse=True)))})\b", re.IGNORECASE)
    for module in modules:
        text = module.file.read_text()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME and token.string in names:
                yield Place(module.file, token.start[0], token.string)
        yield from (Place(module.file, line, words) for line, words in find_matches(phrase, text))
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.py"))]
    quoted = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names)))})\b")
    for file in documents:
        if "generated" not in file.parts:
            text = file.read_text()
            yield from (Place(file, line, words) for line, words in find_matches(phrase, text))
            for number, line in enumerate(text.splitlines(), 1):
                for code in re.findall(r"`([^`]+)`", line):
                    if len(code.split()) < MESSAGE_WORDS:
                        yield from (Place(file, number, name) for name in quoted.findall(code))


def find_matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, match) for every match of a `pattern` in the lines of a `text`."""
    return ((number, match[0]) for number, line in enumerate(text.splitlines(), 1) for match in pattern.finditer(line))


def glossary() -> tuple[set[str], set[str]]:
    """Returns the names in backquotes and the phrases in double quotes of the table "Retired terms" in CONTRIBUTING.md."""
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
    """A count with its limit.

    Attributes:
        find: yields the places that count.
        limit: the highest allowed value.
        total: if given, the value is a percentage of its result.
    """

    find: Callable[[list[Module]], Iterator[Place]]
    limit: float
    total: Callable[[list[Module]], int] | None = None


LINES_OF_CODE = {  # {folders of the package: lines of code}
    ("",): 32_031,
    ("engine",): 8_327,
    ("engine/compiler",): 1_674,
    ("engine/single_agent", "engine/multi_agent"): 2_660,
    ("engine/layout",): 1_282,
    ("engine/backends",): 2_559,
    ("learners",): 12_416,
    ("testing",): 3_137,
    ("vector",): 2_608,
    ("cli",): 2_561,
}
# The last ones are budgets of wholes, which may only fall.
MEASURES = {
    "long_functions": Measure(long_functions, 8),
    "deep_functions": Measure(deep_functions, 0),
    "any_parameters_percent": Measure(any_parameters, 10.0, count_parameters),
    "duplicate_modules": Measure(duplicate_modules, 0),
    "duplicate_classes": Measure(duplicate_classes, 0),
    "private_access": Measure(private_access, 0),
    "incomplete_docstrings": Measure(incomplete_docstrings, 0),
    "retired_words": Measure(retired_words, 0),
    **{
        f"lines {' + '.join(folders) or 'of code'}": Measure(partial(code_lines, folders=folders), limit)
        for folders, limit in LINES_OF_CODE.items()
    },
    "single_importers": Measure(single_importers, 4),
    "engine_used_once_percent": Measure(
        partial(functions_used_once, folder="engine"), 30.0, partial(count_functions, folder="engine")
    ),
    "engine_nested_percent": Measure(
        partial(nested_functions, folder="engine"), 12.9, partial(count_functions, folder="engine")
    ),
    "alias_names": Measure(alias_names, 150),
    "deep_classes": Measure(deep_classes, 3),
    "schema_calls": Measure(schema_calls, 4),
}


def main() -> int:
    """Prints the measures; returns how many exceed their limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=MEASURES, metavar="NAME", help=f"one of {', '.join(MEASURES)}")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    modules = load_modules()
    if arguments.list:
        print(*MEASURES[arguments.list].find(modules), sep="\n")
        return 0
    values, beyond = {}, 0
    for name, measure in MEASURES.items():
        count = len(list(measure.find(modules)))
        values[name] = round(100 * count / measure.total(modules), 1) if measure.total else count
        beyond += values[name] > measure.limit
        print(f"{name:42} {values[name]:>8}   at most {measure.limit:g}")
    values["source_lines"] = sum(len(module.file.read_text().splitlines()) for module in modules)
    print(f"{'source_lines':42} {values['source_lines']:>8}")
    if arguments.json:
        arguments.json.write_text(json.dumps(values, indent=1) + "\n")
    return beyond


if __name__ == "__main__":
    sys.exit(main())
