"""An author's file in CUDA C++: where it is, and what is compiled of it."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gpuvec.errors import AuthoringError, CompilerWarning
from gpuvec.spec import Environment

UNINITIALISED = re.compile(r"used before its value is set|-W(?:maybe-|sometimes-)?uninitialized")
NAMES = {"ltoir": "LTOIR", "ptx": "PTX"}  # of what the compiler makes


class Source(NamedTuple):
    """A file in CUDA C++ with what it is compiled with."""

    file: Path
    written: str  # what the author wrote
    before: str
    after: str

    @property
    def text(self) -> str:
        """All of it; the compiler counts lines as the file has them."""
        return f'#line 1 "what gpuvec declares"\n{self.before}#line 1 "{self.file}"\n{self.written}\n{self.after}'


def cuda_c_file(env: Environment) -> Path:
    """Its file in CUDA C++, beside the module of its functions.

    Raises:
        AuthoringError: it has none.
    """
    module = env.reset.__module__
    if env.cuda_c is None:
        raise AuthoringError(
            f"the environment of {module} has no functions in CUDA C++: name their file, as in "
            'SingleAgentEnv(..., cuda_c="name.cu"), '
            'or choose backend="numba".'
        )
    place = Path(env.reset.__globals__.get("__file__") or ".").parent / env.cuda_c
    if not place.is_file():
        raise AuthoringError(f"cuda_c of the environment of {module} is {env.cuda_c!r}: there is no file {place}.")
    return place


def source_text(env: Environment, cuda_c: bool) -> str:
    """What kernels are made from beside Python: the author's files in CUDA C++ if they are used, else nothing."""
    return everything(cuda_c_file(env)) if cuda_c else ""


def check_source_text(env: Environment, cuda_c: bool, before: str) -> None:
    """Refuses kernels whose source in CUDA C++ changed between the reading of their hash's text and their compilation.

    Raises:
        AuthoringError: the files are not what they were before.
    """
    if source_text(env, cuda_c) != before:
        raise AuthoringError(
            f"{cuda_c_file(env)}, or what it includes, changed while it was compiled: make the environment again."
        )


def everything(file: Path) -> str:
    """Its text, and behind it that of the author's files which it includes, or which these include, each after a zero."""
    return "\0".join(texts_of(file).values())


def texts_of(file: Path) -> dict[Path, str]:
    """{file: text}: the file, and behind it the author's files which it includes, or which these include."""
    texts: dict[Path, str] = {}
    waiting = [file.resolve()]
    while waiting:
        one = waiting.pop()
        if one not in texts and one.is_file():
            texts[one] = one.read_text()
            names = re.findall(r'^\s*#\s*include\s*"([^"]+)"', texts[one], re.MULTILINE)
            waiting += [(folder / name).resolve() for folder in (one.parent, file.parent) for name in names]
    return texts


def warn_of(source: Source, log: str) -> None:
    """Passes a compiler's warnings about the author's lines on.

    Raises:
        AuthoringError: a warning of a variable that is read before it has a value.
    """
    said = "\n".join(line for line in log.splitlines() if line.strip())
    if str(source.file) not in said:
        return
    if UNINITIALISED.search(said):
        raise AuthoringError(f"{source.file} reads a variable that has no value yet; give it one where it is declared:\n{said}")
    warnings.warn(f"the compiler says of {source.file}:\n{said}", CompilerWarning, stacklevel=2)


@lru_cache(maxsize=64)
def compile_source(source: Source, cc: tuple[int, int], form: str = "ltoir") -> bytes:
    """Its functions as "ltoir" for compute capability `cc`, or as "ptx" that says of which line each instruction is.

    Raises:
        AuthoringError: they do not compile, or read a variable without a value; the message has the compiler's own, with the
            file's lines. What else the compiler warns of is a CompilerWarning.
    """
    from cuda.bindings import nvrtc

    def called(function: Any, *given: Any) -> Any:
        status, *rest = function(*given)
        if status and function is not nvrtc.nvrtcCompileProgram:
            raise RuntimeError(f"{function.__name__}: {status!r}")
        return rest[0] if rest else status

    kind, option = ("compute", "-lineinfo") if form == "ptx" else ("sm", "-dlto")
    options = [f"-arch={kind}_{cc[0]}{cc[1]}", "-std=c++17", "-rdc=true", f"-I{source.file.parent}", option]
    program = called(nvrtc.nvrtcCreateProgram, source.text.encode(), str(source.file).encode(), 0, [], [])
    try:
        refused = called(nvrtc.nvrtcCompileProgram, program, len(options), [option.encode() for option in options])
        # NVRTC writes into the bytes, and Python has only one object for each single byte: an empty log, of one, is not read.
        log = b" " * called(nvrtc.nvrtcGetProgramLogSize, program)
        if len(log) > 1:
            called(nvrtc.nvrtcGetProgramLog, program, log)
        said = log.decode().strip("\0 \n")
        if refused:
            raise AuthoringError(f"{source.file} does not compile:\n{said}")
        warn_of(source, said)
        made: bytes = b" " * called(getattr(nvrtc, f"nvrtcGet{NAMES[form]}Size"), program)
        called(getattr(nvrtc, f"nvrtcGet{NAMES[form]}"), program, made)
        return made
    finally:
        called(nvrtc.nvrtcDestroyProgram, program)
