"""Functions in CUDA C++ on a CPU, as g++ compiles them: what they do can be tested without a GPU.

The CPU's kernels are composed of a twin as a GPU's are, and call the library that g++ makes of its source.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, Single, uniform
from gpuvec.engine.cpp import twin as module
from gpuvec.engine.cpp.foreign import foreign
from gpuvec.engine.cpp.source import Source

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


# An environment whose file tests write.


class State(NamedTuple):
    x: float
    count: int
    odd: bool


class Params(NamedTuple):
    size: float = 3.0
    most: int = 5


def reset(key: Key, p: Params) -> State:
    return State(uniform(key, 0, -p.size, p.size), 0, False)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    x = s.x + (0.5 if action == 1 else -0.5) + uniform(key, 0, -0.1, 0.1)
    return State(x, s.count + 1, not s.odd), x if s.odd else 0.0, abs(x) > p.size or s.count + 1 >= p.most


def observe(s: State, p: Params) -> tuple[float, float]:
    return s.x, 1.0 if s.odd else 0.0


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-np.inf, np.inf, (2,)), Discrete(2)


STEP = """__device__ Step step(State s, Action action, const Key& key, const Params& p) {
    const float x = s.x + (action == 1 ? 0.5f : -0.5f) + uniform(key, 0, -0.1f, 0.1f);
    return {{x, s.count + 1, !s.odd}, s.odd ? x : 0.0f, fabsf(x) > p.size || s.count + 1 >= p.most};
}
"""
OBSERVE = "__device__ Floats<2> observe(const State& s, const Params& p) { return {s.x, s.odd ? 1.0f : 0.0f}; }\n"


def own(file: Path) -> Single:
    """The environment with that file."""
    return Single(state=State, params=Params(), reset=reset, step=step, observe=observe, spaces=spaces, cuda_c=str(file))
