"""An environment with functions in CUDA C++, and whether this machine can run them without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, uniform
from gpuvec.engine.backends.cuda.cpp.host_compiler import COMPILERS

NO_COMPILER = not any(map(shutil.which, COMPILERS))
needs_host_compiler = pytest.mark.skipif(NO_COMPILER, reason="functions in CUDA C++ need a C++ compiler on a CPU")
ON_CPU = {"device": "cpu", "backend": "cuda-c"}


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


def own(file: Path) -> SingleAgentEnv:
    """Returns the environment whose functions in CUDA C++ are in `file`, which the test writes."""
    return SingleAgentEnv(
        state=State, params=Params(), reset=reset, step=step, observe=observe, spaces=spaces, cuda_c=str(file)
    )
