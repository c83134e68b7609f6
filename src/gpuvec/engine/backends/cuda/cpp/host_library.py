"""An author's functions in CUDA C++, compiled for the CPU by the host's C++ compiler.

A CPU plays them where `make_vec(..., device="cpu", backend="cuda-c")` asks for it, so that what they compute can be compared
with Python's without a GPU. Products and sums are not contracted, as Numba does not contract them on a CPU either.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import Source, warn_of
from gpuvec.engine.compiler.extern_call import extern_c_call
from gpuvec.engine.compiler.numba_api import cpu_numba
from gpuvec.errors import AuthoringError

# What CUDA declares of itself. The author's names are in a namespace, since C has a function `time` too.
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
OPTIONS = (
    "-O2", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-Wl,-Bsymbolic",  # each library calls its own `step`
    "-Wall", "-Wno-unknown-pragmas", "-Wno-unused",
)  # fmt: skip


def host_call(symbol: str, returns: Sequence[Any]) -> Any:
    """An intrinsic for the CPU that calls the C function `symbol`, whose results have the NumPy dtypes `returns`."""
    from numba.np.numpy_support import from_dtype

    return extern_c_call(cpu_numba(), symbol, [from_dtype(np.dtype(kind)) for kind in returns])


@lru_cache(maxsize=64)
def load_library(source: Source) -> None:
    """Compiles the functions and lets compiled code of this process call them; once for each text.

    Raises:
        MissingExtraError: there is no C++ compiler.
        AuthoringError: they do not compile; the message is the compiler's own, with the file's lines.
    """
    import llvmlite.binding

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, f"gpuvec_{hashlib.sha256(source.text.encode()).hexdigest()[:16]}.so")
        command = [*host_compiler(), *OPTIONS, f"-I{source.file.parent}", "-x", "c++", "-", "-o", str(library)]
        done = subprocess.run(command, input=f"{PRELUDE}{source.text}}}\n", capture_output=True, text=True, check=False)
        if done.returncode:
            raise AuthoringError(f"{source.file} does not compile for a CPU:\n{done.stderr.strip()}")
        warn_of(source, done.stderr)
        llvmlite.binding.load_library_permanently(str(library))
