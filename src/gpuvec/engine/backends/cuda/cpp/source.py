"""An author's CUDA C++ file: where it is, what it includes and defines, and its compilation.

For a CPU, the host's C++ compiler compiles it: its functions run in `make_vec(..., device="cpu", backend="cuda-c")`, so that
their results can be compared with those of the Python functions on a machine without a GPU. As in Numba's code for a CPU, a
product and a sum are not contracted into one operation.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import subprocess
import tempfile
import warnings
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.compiler.diagnostics import authoring_error_at
from gpuvec.errors import AuthoringError, CompilerWarning
from gpuvec.phases import first_function
from gpuvec.spec import Environment

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
UNINITIALIZED = re.compile(r"used before its value is set|-W(?:maybe-|sometimes-)?uninitialized")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
VARIABLE = re.compile(r"\b(?:__device__|__managed__|__shared__|static)\b([^;{}()=\[]*)[;{=\[]")  # a function would have a "("
DEVICE_FUNCTION = re.compile(r"\b__device__\b[^;{}()]*?\b(\w+)\s*\(")
NVRTC_NAMES = {"ltoir": "LTOIR", "ptx": "PTX"}  # of the formats in the names of NVRTC's functions

# Declarations that CUDA compilers have built in. The author's names are in a namespace, because C has a function `time` too.
PRELUDE = """
#include <algorithm>
#include <cmath>
#include <cstring>
#define __device__
#define __constant__
#define __forceinline__ inline
#define __restrict__
#define __builtin_assume(condition)
namespace gpuvec_functions {
using std::max, std::min;
inline int __float_as_int(float x) { int bits; memcpy(&bits, &x, 4); return bits; }
inline float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <typename T> inline T __ldg(const T* address) { return *address; }
"""
# With -Bsymbolic each library calls its own functions, though several libraries of a process define the same names.
HOST_OPTIONS = (
    "-O2", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-Wl,-Bsymbolic",
    "-Wall", "-Wno-unknown-pragmas", "-Wno-unused",
)  # fmt: skip


class AuthorSource(NamedTuple):
    """An author's CUDA C++ file with the text that is compiled before and after it.

    Attributes:
        file: the author's file.
        author_text: the content of the file.
        header: declarations that the file uses.
        wrappers: functions that kernels call, which call those of the file.
    """

    file: Path
    author_text: str
    header: str
    wrappers: str

    @property
    def text(self) -> str:
        """The whole text, in which the compiler counts lines as in the author's file."""
        return f'#line 1 "<gpuvec declarations>"\n{self.header}#line 1 "{self.file}"\n{self.author_text}\n{self.wrappers}'


def cuda_c_file(env: Environment) -> Path:
    """Returns the CUDA C++ file of `env`, whose path is relative to the Python module of its functions.

    Raises:
        AuthoringError: the environment names no file, or one that does not exist.
    """
    module = first_function(env.reset).__module__
    if env.cuda_c is None:
        raise AuthoringError(
            f"the environment of {module} has no functions in CUDA C++: name their file, as in "
            'SingleAgentEnv(..., cuda_c="name.cu"), '
            'or choose backend="numba".'
        )
    path = Path(first_function(env.reset).__globals__.get("__file__") or ".").parent / env.cuda_c
    if not path.is_file():
        raise AuthoringError(f"cuda_c of the environment of {module} is {env.cuda_c!r}: there is no file {path}.")
    return path


def source_text(env: Environment, cuda_c: bool) -> str:
    """Returns the CUDA C++ text that kernels are compiled from, as one string for their hash.

    Args:
        env: the environment.
        cuda_c: whether its functions in CUDA C++ are used; if not, the text is empty.
    """
    return joined_text(cuda_c_file(env)) if cuda_c else ""


def check_source_text(env: Environment, cuda_c: bool, hashed_text: str) -> None:
    """Refuses kernels whose CUDA C++ files changed between the hash of their text and their compilation.

    Args:
        env: the environment.
        cuda_c: whether its functions in CUDA C++ are used.
        hashed_text: what `source_text` returned for the hash.

    Raises:
        AuthoringError: the files have another text now.
    """
    if source_text(env, cuda_c) != hashed_text:
        raise AuthoringError(
            f"{cuda_c_file(env)}, or what it includes, changed while it was compiled: make the environment again."
        )


def joined_text(file: Path) -> str:
    """Returns the text of `file` and of all files that it includes, separated by null characters."""
    return "\0".join(read_with_includes(file).values())


def read_with_includes(file: Path) -> dict[Path, str]:
    """Returns {path: text} of `file`, and after it of the author's files that it includes directly or indirectly."""
    texts: dict[Path, str] = {}
    pending = [file.resolve()]
    while pending:
        path = pending.pop()
        if path not in texts and path.is_file():
            texts[path] = path.read_text()
            names = INCLUDE.findall(texts[path])
            pending += [(folder / name).resolve() for folder in (path.parent, file.parent) for name in names]
    return texts


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
    for match in DEVICE_FUNCTION.finditer(code):
        begin, name = re.compile(r"\s*{").match(code, _end_of_brackets(code, match.end(), "()")), match[1]
        if not begin:
            continue  # a declaration
        lines[name] = code.count("\n", 0, match.start(1)) + 1
        if re.search(rf"\b{name}\s*\(", code[begin.end() : _end_of_brackets(code, begin.end(), "{}")]):
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


def _end_of_brackets(code: str, position: int, brackets: str) -> int:
    """The position after the closing bracket that matches the opening one directly before `position`."""
    depth = 1
    while depth and position < len(code):
        depth += {brackets[0]: 1, brackets[1]: -1}.get(code[position], 0)
        position += 1
    return position


def report_warnings(source: AuthorSource, log: str) -> None:
    """Reports a compiler's warnings about the author's file as a CompilerWarning.

    Args:
        source: what was compiled.
        log: the output of the compiler.

    Raises:
        AuthoringError: a warning about a variable that is read before it has a value.
    """
    messages = "\n".join(line for line in log.splitlines() if line.strip())
    if str(source.file) not in messages:
        return
    if UNINITIALIZED.search(messages):
        raise AuthoringError(
            f"{source.file} reads a variable that has no value yet; give it one where it is declared:\n{messages}"
        )
    warnings.warn(f"the compiler reports about {source.file}:\n{messages}", CompilerWarning, stacklevel=2)


@lru_cache(maxsize=64)
def compile_source(source: AuthorSource, cc: tuple[int, int], code_format: str = "ltoir") -> bytes:
    """Compiles an author's functions with NVRTC.

    Args:
        source: the functions.
        cc: the compute capability.
        code_format: "ltoir", or "ptx" with the source line of each instruction.

    Returns:
        The code in that format. Warnings of the compiler are reported as a CompilerWarning.

    Raises:
        AuthoringError: the functions do not compile, or read a variable without a value; the message is the compiler's own,
            with the lines of the author's file.
    """
    from cuda.bindings import nvrtc

    def call(function: Any, *args: Any) -> Any:
        status, *results = function(*args)
        if status and function is not nvrtc.nvrtcCompileProgram:
            raise RuntimeError(f"{function.__name__}: {status!r}")
        return results[0] if results else status

    arch, option = ("compute", "-lineinfo") if code_format == "ptx" else ("sm", "-dlto")
    options = [f"-arch={arch}_{cc[0]}{cc[1]}", "-std=c++17", "-rdc=true", f"-I{source.file.parent}", option]
    program = call(nvrtc.nvrtcCreateProgram, source.text.encode(), str(source.file).encode(), 0, [], [])
    try:
        failed = call(nvrtc.nvrtcCompileProgram, program, len(options), [option.encode() for option in options])
        # NVRTC writes into the bytes, and Python has only one object for each single byte: an empty log, of one, is not read.
        log = b" " * call(nvrtc.nvrtcGetProgramLogSize, program)
        if len(log) > 1:
            call(nvrtc.nvrtcGetProgramLog, program, log)
        messages = log.decode().strip("\0 \n")
        if failed:
            raise AuthoringError(f"{source.file} does not compile:\n{messages}")
        report_warnings(source, messages)
        code: bytes = b" " * call(getattr(nvrtc, f"nvrtcGet{NVRTC_NAMES[code_format]}Size"), program)
        call(getattr(nvrtc, f"nvrtcGet{NVRTC_NAMES[code_format]}"), program, code)
        return code
    finally:
        call(nvrtc.nvrtcDestroyProgram, program)


@lru_cache(maxsize=64)
def load_library(source: AuthorSource) -> None:
    """Compiles a `source` into a shared library and loads it into this process, once for each text.

    Raises:
        MissingExtraError: there is no C++ compiler.
        AuthoringError: the source does not compile; the message is the compiler's own, with the lines of the author's file.
    """
    import llvmlite.binding

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, f"gpuvec_{hashlib.sha256(source.text.encode()).hexdigest()[:16]}.so")
        command = [*host_compiler(), *HOST_OPTIONS, f"-I{source.file.parent}", "-x", "c++", "-", "-o", str(library)]
        result = subprocess.run(command, input=f"{PRELUDE}{source.text}}}\n", capture_output=True, text=True, check=False)
        if result.returncode:
            raise AuthoringError(f"{source.file} does not compile for a CPU:\n{result.stderr.strip()}")
        report_warnings(source, result.stderr)
        llvmlite.binding.load_library_permanently(str(library))
