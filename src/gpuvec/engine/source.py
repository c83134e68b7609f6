"""An author's file in CUDA C++: where it is, and what is compiled of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from gpuvec.errors import AuthoringError
from gpuvec.spec import Environment


class Source(NamedTuple):
    """A file in CUDA C++ with what it is compiled with."""

    file: Path
    before: str
    after: str

    @property
    def text(self) -> str:
        """All of it; the compiler counts lines as the file has them."""
        return f'#line 1 "what gpuvec declares"\n{self.before}#line 1 "{self.file}"\n{self.file.read_text()}\n{self.after}'


def file_of(env: Environment) -> Path:
    """Its file in CUDA C++, beside the module of its functions.

    Raises:
        AuthoringError: it has none.
    """
    module = env.reset.__module__
    if env.cuda_c is None:
        raise AuthoringError(
            f'the environment of {module} has no functions in CUDA C++: name their file, as in Single(..., cuda_c="name.cu"), '
            'or choose backend="numba".'
        )
    place = Path(getattr(sys.modules.get(module), "__file__", None) or ".").parent / env.cuda_c
    if not place.is_file():
        raise AuthoringError(f"cuda_c of the environment of {module} is {env.cuda_c!r}: there is no file {place}.")
    return place
