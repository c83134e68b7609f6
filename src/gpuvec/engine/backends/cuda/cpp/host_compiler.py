"""Finds the C++ compiler of this machine."""

from __future__ import annotations

import os
import shlex
import shutil

from gpuvec.errors import MissingExtraError

COMPILERS = ("c++", "g++", "clang++")


def host_compiler() -> list[str]:
    """Returns the command of the host's C++ compiler: `CXX`, or the first of `COMPILERS` that is installed.

    Raises:
        MissingExtraError: there is no C++ compiler.
    """
    command = shlex.split(os.environ.get("CXX", ""))
    if command and shutil.which(command[0]):
        return command
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise MissingExtraError(
        "functions in CUDA C++ run on a CPU where there is a C++ compiler, and neither CXX nor "
        f'{", ".join(COMPILERS)} is one: install g++ or clang++, or choose backend="numba".'
    )
