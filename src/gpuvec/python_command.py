"""The command that starts another Python, for a process that does a part of the work of this one."""

from __future__ import annotations

import os
import sys


def python_command(code: str, *arguments: str) -> list[str]:
    """Returns the command of a Python that imports each module from where this process would import it.

    By itself it would search the working folder before the standard library, or without it not find the user's own modules.

    Args:
        code: what it runs; `sys` is imported.
        arguments: the words after the code, in `sys.argv[1:]`.
    """
    path = [entry or os.getcwd() for entry in sys.path]  # noqa: PTH109  # strings, as Python itself writes them into it
    safe_path = ["-P"] * sys.flags.safe_path  # which says whether `gpuvec` adds the working folder
    return [sys.executable, *safe_path, "-c", f"import sys; sys.path[:] = {path!a}; {code}", *arguments]
