"""Compiles an author's functions in CUDA C++ for the CPU, with the host's C++ compiler.

They run in `make_vec(..., device="cpu", backend="cuda-c")`, so that their results can be compared with those of the Python
functions on a machine without a GPU. As in Numba's code for a CPU, a product and a sum are not contracted into one operation.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from gpuvec.engine.backends.cuda.cpp.host_compiler import host_compiler
from gpuvec.engine.backends.cuda.cpp.source import AuthorSource, report_warnings
from gpuvec.engine.compiler.extern_call import extern_c_call
from gpuvec.engine.compiler.numba_api import cpu_numba
from gpuvec.engine.compiler.types import DeviceFunction, DType
from gpuvec.errors import AuthoringError

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
OPTIONS = (
    "-O2", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-Wl,-Bsymbolic",
    "-Wall", "-Wno-unknown-pragmas", "-Wno-unused",
)  # fmt: skip


def cpu_extern_call(symbol: str, returns: Sequence[DType]) -> DeviceFunction:
    """An intrinsic for the CPU that calls the C function `symbol`, whose results have the NumPy dtypes `returns`."""
    from numba.np.numpy_support import from_dtype

    return extern_c_call(cpu_numba(), symbol, [from_dtype(np.dtype(dtype)) for dtype in returns])


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
        command = [*host_compiler(), *OPTIONS, f"-I{source.file.parent}", "-x", "c++", "-", "-o", str(library)]
        result = subprocess.run(command, input=f"{PRELUDE}{source.text}}}\n", capture_output=True, text=True, check=False)
        if result.returncode:
            raise AuthoringError(f"{source.file} does not compile for a CPU:\n{result.stderr.strip()}")
        report_warnings(source, result.stderr)
        llvmlite.binding.load_library_permanently(str(library))
