"""The dialect of device code, in words: what Numba refuses becomes the author's line, what is wrong there, and the remedy."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment, SingleAgentEnv

PACKAGE = Path(__file__).parents[2]

REMEDIES = {  # what Numba says, and what an author can do about it
    r">>> float\(bool\)": "write 1.0 if c else 0.0",
    r">>> \w+\(none\b": "what `neighbors` finds is no part of the state: only other_features and self_features read it",
    r">>> getitem\(int": "the action of a Discrete space is an int, that of a Box or MultiDiscrete a tuple",
    r"modify readonly": "reset and phases write to the state, others read it, and role and agents_by_role are the engine's",
    r"No implementation of function": "use functions of math, other plain functions, and min(max(x, low), high) for a clip",
    r"Unknown attribute '\w+' of type Module": "import the function by its name, as in `from gpuvec import uniform`",
    r"Unknown attribute '_replace'": "build a new State, with every field",
    r"Unknown attribute": "use a field that the NamedTuple has",
    r"NameError|Untyped global name": "use numbers, tuples, NumPy tables and functions that the module defines or imports",
    r"No definition for lowering": "a NamedTuple does not change: build a new one; if it holds arrays, write their elements, "
    "and have an env's own number or bool set by count_of, any_of, all_of or argmin_of",
    r"[Cc]annot unify": "give the variable, or the field, the same type on every path",
    r"yield": "device code has no generators or comprehensions: write a loop",
    r"exception|opcode|bytecode": "device code has no try, with, class or import statement",
    r"\blist|\bdict|\bset\(": "device code has no lists, sets, dicts or strings: use a tuple, or fields of the state",
}


def compiler_errors() -> tuple[type[Exception], ...]:
    """What compiling raises. A process whose kernels are on disk imports this module, and no Numba."""
    from numba.core.errors import NumbaError, UnsupportedBytecodeError

    return NumbaError, UnsupportedBytecodeError, NotImplementedError, TypeError


@contextmanager
def explain_compiler_errors(function: Any) -> Iterator[None]:
    """Raises what the compiler says about `function`, or about those that it calls, in plain words.

    Raises:
        AuthoringError: code that cannot be compiled, with file, line and remedy.
    """
    try:
        yield
    except AuthoringError:
        raise
    except compiler_errors() as error:
        raise authoring_error_from(function, error) from error


def explain_env_errors(env: Environment, kind: str) -> AbstractContextManager[None]:
    """Explains the compiler's errors in its block as `explain_compiler_errors` does, for the kernels of an environment.

    Args:
        env: the environment.
        kind: "reset" or "step".
    """
    return explain_compiler_errors(step_function(env) if kind == "step" else env.reset)


def step_function(env: Environment) -> Callable[..., Any]:
    """The author's function to name in a message on a step.

    Args:
        env: the environment.
    """
    return env.step if isinstance(env, SingleAgentEnv) else next(filter(callable, env.phases), env.reward)


def authoring_error_from(function: Any, error: Exception) -> AuthoringError:
    """Numba's error in plain words: the author's line that it is about, what is wrong there, and the remedy."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error))  # Numba may colour its messages
    found = re.findall(r'(?:File "([^"]+)", line |(\S+\.py) \()(\d+)', text)
    places = [(Path(name).resolve(), int(line)) for name, line in ((a or b, line) for a, b, line in found) if _authored(name)]
    if not places and getattr(error, "loc", None) is not None and _authored(error.loc.filename):  # type: ignore[attr-defined]
        places = [(Path(error.loc.filename).resolve(), error.loc.line)]  # type: ignore[attr-defined]  # of Numba's errors
    said = next((line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in")), text)
    call = re.search(r">>> (.+)", text)
    said = f"there is no {call[1]} in device code" if call else said.partition(" Raised from ")[0].rstrip(". ")
    said = "writes what it may only read" if "modify readonly" in text else said
    said = re.sub(r"No definition for lowering (\w+)\(.*\)\.(\w+) = .*", r"gives \1.\2 another value", said)
    remedy = next((r for pattern, r in REMEDIES.items() if re.search(pattern, text)), "write it with numbers, tuples and math")
    file, line = places[0] if places else (function.__code__.co_filename, function.__code__.co_firstlineno)
    return authoring_error_at(file, line, f"{said}; {remedy}")


def _authored(file: str) -> bool:
    """Whether it is no file of Numba's or of this package, nor code that the engine generated."""
    path = Path(file).resolve()
    return not file.startswith("<") and "numba" not in path.parts and not path.is_relative_to(PACKAGE)


def authoring_error(function: Any, what: str, line: int | None = None) -> AuthoringError:
    """What is wrong in `function`, in that line or as a whole."""
    code = function.__code__
    return authoring_error_at(code.co_filename, line or code.co_firstlineno, what)


def authoring_error_at(file: str | Path, line: int, what: str) -> AuthoringError:
    """What is wrong in that line."""
    linecache.checkcache(str(file))  # which may have been changed since
    return AuthoringError(f"{file}, line {line}, `{linecache.getline(str(file), line).strip()}`: {what}.")
