"""Which C++ compiler this machine has."""

from __future__ import annotations

import os
import shlex
import shutil

from gpuvec.errors import MissingExtraError

COMPILERS = ("c++", "g++", "clang++")


def host_compiler() -> list[str]:
    """The command of the host's C++ compiler: `CXX`, or the first of `COMPILERS` that is installed.

    Raises:
        MissingExtraError: there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    found = named if named and shutil.which(named[0]) else next(([name] for name in COMPILERS if shutil.which(name)), None)
    if found is None:
        raise MissingExtraError(
            "functions in CUDA C++ run on a CPU where there is a C++ compiler, and neither CXX nor "
            f'{", ".join(COMPILERS)} is one: install g++ or clang++, or choose backend="numba".'
        )
    return found
