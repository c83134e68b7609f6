"""Error messages for code that cannot be compiled: the author's line, what is wrong there, and the remedy."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from gpuvec.errors import AuthoringError
from gpuvec.phases import ByRole, first_function, phase_function
from gpuvec.spec import Environment, SingleAgentEnv

PACKAGE = Path(__file__).parents[2]

# What an author can do about a message of Numba's, by a pattern that the message contains. The first match counts.
REMEDIES_BY_PATTERN = {
    r">>> float\(bool\)": "write 1.0 if c else 0.0",
    r">>> \w+\(none\b": "what `neighbors` finds is not in the state here: only other_features and self_features read it",
    r">>> getitem\(int": "the action of a Discrete space is an int, that of a Box or MultiDiscrete a tuple",
    r"modify readonly": "reset and phases write to the state, others read it, and role and agents_by_role are the engine's",
    r"No implementation of function": "use functions of math, other plain functions, and min(max(x, low), high) for a clip",
    r"Unknown attribute '\w+' of type Module": "import the function by its name, as in `from gpuvec import uniform`",
    r"Unknown attribute '_replace'": "build a new State, with every field",
    r"Unknown attribute": "use a field that the NamedTuple has",
    r"NameError|Untyped global name": "use numbers, tuples, NumPy tables and functions that the module defines or imports",
    r"No definition for lowering": "a NamedTuple is immutable: build a new one; if its fields are arrays, write their "
    "elements, and let count_of, any_of, all_of or argmin_of set a number or bool of the env",
    r"[Cc]annot unify": "give the variable, or the field, the same type on every path",
    r"yield": "device code has no generators or comprehensions: write a loop",
    r"exception|opcode|bytecode": "device code has no try, with, class or import statement",
    r"\blist|\bdict|\bset\(": "device code has no lists, sets, dicts or strings: use a tuple, or fields of the state",
}


@contextmanager
def explain_compiler_errors(function: Any) -> Iterator[None]:
    """Replaces the compiler's errors in its block by errors for the author of `function`, or of functions that it calls.

    Raises:
        AuthoringError: code that cannot be compiled, with file, line and remedy.
    """
    # Not at the top, so that this module can be imported without Numba when all kernels are on disk.
    from numba.core.errors import NumbaError, UnsupportedBytecodeError

    try:
        yield
    except AuthoringError:
        raise
    except (NumbaError, UnsupportedBytecodeError, NotImplementedError, TypeError) as error:
        # Numba may colour its messages with escape sequences.
        text = re.sub("\x1b\\[[0-9;]*m", "", str(error))
        remedy = next(
            (remedy for pattern, remedy in REMEDIES_BY_PATTERN.items() if re.search(pattern, text)),
            "write it with numbers, tuples and math",
        )
        # The first line of the function is shown if the compiler names no line of the author's.
        file, line = _author_line(text, error) or (function.__code__.co_filename, function.__code__.co_firstlineno)
        raise authoring_error_at(file, line, f"{_problem(text)}; {remedy}") from error


def explain_env_errors(env: Environment, kind: str) -> AbstractContextManager[None]:
    """Returns the context manager of `explain_compiler_errors` for the compilation of an environment's kernels.

    Args:
        env: the environment.
        kind: "reset" or "step".
    """
    return explain_compiler_errors({"reset": first_function(env.reset), "step": step_function(env)}[kind])


def step_function(env: Environment) -> Callable[..., Any]:
    """Returns the author's function that a message about a step of `env` names."""
    if isinstance(env, SingleAgentEnv):
        return env.step
    reward = env.reward.functions[0] if isinstance(env.reward, ByRole) else env.reward
    phases_of_agents = filter(callable, env.phases)
    functions: tuple[Callable[..., Any], ...] = (*phases_of_agents, *map(phase_function, env.phases), reward)
    return functions[0]


def _author_line(text: str, error: Exception) -> tuple[Path, int] | None:
    """Returns (file, line) of the author's line that the error is about; None if it is about none.

    Numba names lines in its message. numba-cuda does not name those of functions that a kernel calls; they are the locations of
    the expressions whose types were being inferred when the error was raised.
    """
    matches = re.findall(r'(?:File "([^"]+)", line |(\S+\.py) \()(\d+)', text)
    places = [(quoted or bare, int(line)) for quoted, bare, line in matches]
    location: Any = getattr(error, "loc", None)
    if location is not None:
        places.append((location.filename, location.line))
    typed_places = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        location = getattr(frame.f_locals.get("self"), "loc", None)
        if hasattr(location, "filename") and hasattr(location, "line"):
            typed_places.append((location.filename, location.line))
    for file, line in [*places, *reversed(typed_places)]:
        path = Path(file).resolve()
        # A file of the author is neither Numba's nor this package's, and no generated code.
        if not file.startswith("<") and "numba" not in path.parts and not path.is_relative_to(PACKAGE):
            return path, line
    return None


def _problem(text: str) -> str:
    """Returns what is wrong, from the `text` of Numba's message."""
    if "modify readonly" in text:
        return "writes to a read-only array"
    if call := re.search(r">>> (.+)", text):
        return f"there is no {call[1]} in device code"
    lines = (line.strip() for line in text.splitlines())
    message = next((line for line in lines if line and not line.startswith("Failed in")), text)
    message = message.partition(" Raised from ")[0].rstrip(". ")
    return re.sub(r"No definition for lowering (\w+)\(.*\)\.(\w+) = .*", r"assigns to \1.\2", message)


def authoring_error(function: Any, message: str, line: int | None = None) -> AuthoringError:
    """Makes an error about a function.

    Args:
        function: the author's function.
        message: what is wrong, and the remedy.
        line: the line of the file where it is wrong; None for the first line of the function.
    """
    code = function.__code__
    return authoring_error_at(code.co_filename, line or code.co_firstlineno, message)


def authoring_error_at(file: str | Path, line: int, message: str) -> AuthoringError:
    """Makes an error about a line of an author's file.

    Args:
        file: the file.
        line: its line, which the error shows.
        message: what is wrong, and the remedy.
    """
    # The author may have edited the file since Python read it.
    linecache.checkcache(str(file))
    return AuthoringError(f"{file}, line {line}, `{linecache.getline(str(file), line).strip()}`: {message}.")
