"""Which functions a file in CUDA C++ defines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.errors import AuthoringError

WITHOUT_MEANING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)  # comments and texts
SHARED = re.compile(r"\b(?:__device__|__managed__|__shared__|static)\b([^;{}()=\[]*)[;{=\[]")  # a variable, not a function
DEVICE = re.compile(r"\b__device__\b[^;{}()]*?\b(\w+)\s*\(")


def defined(file: Path, text: str, names: set[str], module: Collection[str]) -> dict[str, int]:
    """{name: line} of those functions in `names` that the file with that text defines.

    Raises:
        AuthoringError: there is none; one that calls itself; or one that nothing calls and that is no name of the Python module
            either, of which other functions may be called with other parameters.
    """
    code = _blanked(text)
    found, has = {}, ", ".join(sorted(names))
    for name, at, body in _definitions(code):
        found[name] = code.count("\n", 0, at) + 1
        if re.search(rf"\b{name}\s*\(", body):
            raise authoring_error_at(file, found[name], f"{name} calls itself; device code has no recursion: write a loop")
    for name, line in found.items():
        if name not in names and name not in module and len(re.findall(rf"\b{name}\b", code)) == 1:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            what = f"nothing calls {name}, and it is no function of the environment, which has {has}{meant}"
            raise authoring_error_at(file, line, what)
    if not names & found.keys():
        raise AuthoringError(f"{file} has none of the environment's functions; write some as __device__ functions: {has}.")
    return {name: line for name, line in found.items() if name in names}


def refuse_shared_variables(file: Path, text: str) -> None:
    """Refuses variables that all threads share and may change: results would depend on who comes first, and on the last run.

    Raises:
        AuthoringError: the first of them, with its line and the remedy.
    """
    code = _blanked(text)
    for match in SHARED.finditer(code):
        begin = max(code.rfind(end, 0, match.start()) for end in ";{}") + 1
        declaration = code[begin : match.end(1)]
        constant = re.search(r"\bconstexpr\b|\bconst\b[^*]*$", declaration)
        if constant is None and not declaration.rstrip().endswith("operator"):
            what = "is a variable that the threads of all environments share: make it constexpr, or a field of the state"
            raise authoring_error_at(file, code.count("\n", 0, match.start()) + 1, what)


def _blanked(text: str) -> str:
    """The text with comments and strings as blanks, so that lines and places stay."""
    return WITHOUT_MEANING.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _definitions(code: str) -> Iterator[tuple[str, int, str]]:
    """(name, place, body) of each `__device__` function that has a body."""
    for match in DEVICE.finditer(code):
        begin = re.compile(r"\s*{").match(code, _closed(code, match.end(), "()"))
        if begin:
            yield match[1], match.start(1), code[begin.end() : _closed(code, begin.end(), "{}")]


def _closed(code: str, at: int, pair: str) -> int:
    """Where the bracket is closed that was opened before `at`."""
    depth = 1
    while depth and at < len(code):
        depth += {pair[0]: 1, pair[1]: -1}.get(code[at], 0)
        at += 1
    return at
