"""Finds the functions that a CUDA C++ file defines, and the variables that all its threads would share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.errors import AuthoringError

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
VARIABLE = re.compile(r"\b(?:__device__|__managed__|__shared__|static)\b([^;{}()=\[]*)[;{=\[]")  # a function would have a "("
DEVICE_FUNCTION = re.compile(r"\b__device__\b[^;{}()]*?\b(\w+)\s*\(")


def find_definitions(file: Path, text: str, names: set[str], python_names: Collection[str]) -> dict[str, int]:
    """Returns {name: line} of those functions in `names` that a file defines.

    Args:
        file: the file, which messages name.
        text: the content of the file.
        names: the functions of the environment.
        python_names: names in the environment's Python module. The file may define these without calling them: the
            environment may use them with other parameters.

    Raises:
        AuthoringError: the file defines none of the functions, or a function that calls itself, or one that nothing calls.
    """
    code = _blank_comments(text)
    lines, expected = {}, ", ".join(sorted(names))
    for name, position, body in _definitions(code):
        lines[name] = code.count("\n", 0, position) + 1
        if re.search(rf"\b{name}\s*\(", body):
            raise authoring_error_at(file, lines[name], f"{name} calls itself; device code has no recursion: write a loop")
    for name, line in lines.items():
        if name not in names and name not in python_names and len(re.findall(rf"\b{name}\b", code)) == 1:
            similar = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            suggestion = f"; did you mean {similar[0]}?" if similar else ""
            message = f"nothing calls {name}, and it is not a function of the environment, which has {expected}{suggestion}"
            raise authoring_error_at(file, line, message)
    if not names & lines.keys():
        raise AuthoringError(f"{file} has none of the environment's functions; write some as __device__ functions: {expected}.")
    return {name: line for name, line in lines.items() if name in names}


def refuse_shared_variables(file: Path, text: str) -> None:
    """Refuses variables that all threads share and may change: results would depend on the order of threads.

    Args:
        file: the file, which the message names.
        text: the content of the file.

    Raises:
        AuthoringError: the first such variable, with its line and the remedy.
    """
    code = _blank_comments(text)
    for match in VARIABLE.finditer(code):
        begin = max(code.rfind(end, 0, match.start()) for end in ";{}") + 1
        declaration = code[begin : match.end(1)]
        is_constant = re.search(r"\bconstexpr\b|\bconst\b[^*]*$", declaration) is not None
        if not is_constant and not declaration.rstrip().endswith("operator"):
            message = "is a variable that the threads of all environments share: make it constexpr, or a field of the state"
            raise authoring_error_at(file, code.count("\n", 0, match.start()) + 1, message)


def _blank_comments(text: str) -> str:
    """The text with comments and strings replaced by blanks, so that lines and positions stay the same."""
    return COMMENT_OR_STRING.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _definitions(code: str) -> Iterator[tuple[str, int, str]]:
    """(name, position of the name, body) of each `__device__` function that has a body."""
    for match in DEVICE_FUNCTION.finditer(code):
        begin = re.compile(r"\s*{").match(code, _end_of_brackets(code, match.end(), "()"))
        if begin:
            yield match[1], match.start(1), code[begin.end() : _end_of_brackets(code, begin.end(), "{}")]


def _end_of_brackets(code: str, position: int, brackets: str) -> int:
    """The position after the closing bracket that matches the opening one directly before `position`."""
    depth = 1
    while depth and position < len(code):
        depth += {brackets[0]: 1, brackets[1]: -1}.get(code[position], 0)
        position += 1
    return position
