"""Functions in CUDA C++ on a CPU, as g++ compiles them: what they do can be tested without a GPU.

The CPU's kernels are composed of a twin as a GPU's are, and call the library that g++ makes of its source.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import pytest

from gpuvec.engine import twin as module
from gpuvec.engine.foreign import foreign
from gpuvec.engine.source import Source

MEANT = r"""
#include <cmath>
#include <cstring>
#include <algorithm>
using std::min, std::max;
#define __device__
#define __forceinline__ inline
#define __builtin_assume(what)
inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
"""


def on_cpu(symbol: str, gives: Any) -> Any:
    """`engine.cuda.foreign` for a CPU."""
    from numba import extending, types
    from numba.core import cgutils
    from numba.np.numpy_support import from_dtype

    return foreign(extending, types, cgutils, symbol, [from_dtype(np.dtype(kind)) for kind in gives])


def loaded(source: Source, folder: Path) -> None:
    """Compiles it, so that a CPU's kernels find its functions."""
    if shutil.which("g++") is None:
        pytest.skip("functions in CUDA C++ are tested by what g++ makes of them, and there is none")
    text = re.sub(r"static_assert\(.*\);\n", "", source.text)  # a name such as `time` is the library's too
    file, made = folder / f"{source.file.stem}.cpp", folder / f"{source.file.stem}_{abs(hash(source))}.so"
    file.write_text(MEANT + text)
    options = ["-O2", "-std=c++20", "-shared", "-fPIC", "-w", "-Wl,-Bsymbolic"]  # each library calls its own `step`
    subprocess.run(["g++", *options, str(file), "-o", str(made)], check=True)
    llvmlite.binding.load_library_permanently(str(made))


def twin_on_cpu(env: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, per_env: tuple[str, ...] = ()) -> Any:
    """`env` with functions in C++, for `make_vec(..., device="cpu")`."""
    monkeypatch.setattr(module.target, "foreign", on_cpu)
    module._twin.cache_clear()
    try:
        found = module.twin(env, per_env)
    finally:
        module._twin.cache_clear()
    loaded(found.source, folder)
    return found.env
