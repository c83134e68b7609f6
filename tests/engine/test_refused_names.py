"""Functions that only one backend has are refused on all of them, with the line and what to write."""

# ruff: noqa: PLW0108  # the lambdas are functions of an author, and what they call is not

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numba import njit
from tests.support.arrays import step

import gpuvec
from gpuvec import SingleAgentEnv
from gpuvec.engine.compiler.functions import device_function as prepared
from gpuvec.engine.compiler.functions import is_inline
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.errors import AuthoringError
from gpuvec.testing import check_env

root = np.sqrt


def of_closure() -> Any:
    square_root = np.sqrt
    return lambda x: square_root(x)


def handles(x: float) -> float:
    try:
        return 1.0 / x
    except ZeroDivisionError:
        return 0.0


def finishes(x: float) -> float:
    try:
        y = 1.0 / x
    finally:
        y = 2.0
    return y


def manages(x: float) -> float:
    with np.errstate(all="ignore"):
        return 1.0 / x


def called(x: float) -> float:
    return math.sqrt(x) + np.sqrt(x)


def by_keyword(x: float, *, factor: float = 0.5) -> float:
    return x * factor


REFUSED = {
    "np.sqrt": (lambda x: np.sqrt(x), "there is no np.sqrt in device code; write math.sqrt, which takes numbers"),
    "np.sin": (lambda x: np.sin(x), "write math.sin"),
    "np.arctan2": (lambda x: np.arctan2(x, x), "write math.atan2"),
    "np.sign": (lambda x: np.sign(x), r"no np.sign .* write math.copysign\(1.0, x\)"),
    "np.abs": (lambda x: np.abs(x), r"write abs\(x\)"),
    "np.clip": (lambda x: np.clip(x, 0.0, 1.0), r"write min\(max\(x, low\), high\)"),
    "np.where": (lambda x: np.where(x > 0.0, x, 0.0), "write a if condition else b"),
    "np.zeros": (lambda x: np.zeros(3)[0] + x, "no np.zeros in device code; device code makes no arrays"),
    "np.linalg": (lambda x: np.linalg.norm(x), "no np.linalg.norm in device code; device code makes no arrays"),
    "by another name": (lambda x: root(x), "there is no root in device code; write math.sqrt"),
    "of a closure": (of_closure(), "there is no square_root in device code; write math.sqrt"),
    "of a function that is called": (lambda x: called(x), "write math.sqrt"),
    "random": (lambda x: np.float32(random.random()), "no random.random .* draw with uniform, normal or randint and the key"),
    "np.random": (lambda x: np.random.uniform(), "no np.random.uniform .* draw with uniform"),
    "print": (lambda x: print(x), "there is no print in device code; device code has no input or output: take it out"),
    "try": (handles, r"`except ZeroDivisionError:`: device code has no try or with statement"),
    "finally": (finishes, "device code has no try or with statement"),
    "keyword": (lambda x: by_keyword(x), r"no keyword-only parameters: remove the \*"),
    "with": (manages, r"`with np.errstate\(all=\"ignore\"\):`: device code has no try or with statement"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    function, message = REFUSED[case]
    with pytest.raises(AuthoringError, match=message) as caught:
        prepared(function)
    assert f"{__file__}, line " in str(caught.value)
    assert not is_inline(function)


def helpful(x: float) -> float:
    return max(np.float32(math.sqrt(x) * math.pi), np.float32(np.pi)) + (np.inf if x < 0.0 else 0.0)


def test_what_is_not_refused():
    compiled = prepared(helpful)
    assert njit(lambda x: compiled(x))(4.0) == pytest.approx(2.0 * math.pi)


class State(NamedTuple):
    x: float


def env_of(function: Any) -> SingleAgentEnv:
    """An environment whose step prints, or does what else `function` does."""

    def step(s: Any, action: Any, key: Any, p: Any) -> Any:
        function(s.x)
        return s, 0.0, False

    return SingleAgentEnv(
        state=State, params=State(0.0), reset=lambda key, p: State(1.0), step=step, observe=lambda s, p: (s.x,),
        spaces=lambda p: (Box(-np.inf, np.inf, (1,)), Discrete(2)), max_episode_steps=10,
    )  # fmt: skip


@pytest.mark.parametrize("case", ["np.sqrt", "np.zeros", "print", "try"])
class TestEverywhere:
    def test_backends(self, backend, case):
        function, message = REFUSED[case]
        env = gpuvec.VectorEnv(env_of(function), 2, device=backend, output="cupy" if backend == "cuda" else "numpy")
        with pytest.raises(AuthoringError, match=message):  # what a reset and a step have in common is composed for both
            env.reset(seed=0)

    @pytest.mark.compile
    def test_machine_code_for_a_gpu(self, case):
        from gymnasium.vector import AutoresetMode

        from gpuvec.engine.backends.cuda import numba_cuda
        from gpuvec.engine.backends.cuda.kernels import make_kernels

        if numba_cuda.SIMULATED:
            pytest.skip("the simulator compiles no kernels")
        function, message = REFUSED[case]
        with numba_cuda.offline((9, 0)), pytest.raises(AuthoringError, match=message):
            make_kernels(env_of(function), KernelOptions(AutoresetMode.NEXT_STEP, 10), None, True)

    def test_the_check(self, case):
        function, message = REFUSED[case]
        with pytest.raises(AuthoringError, match=message):
            check_env(env_of(function))


def adds_text(x: float) -> Any:
    return x + "metres"  # type: ignore[operator]  # what an author might write by mistake


def reset_and_step(env: gpuvec.VectorEnv) -> None:
    env.reset(seed=0)
    step(env, np.zeros(env.num_envs, np.int32))


def test_every_backend_explains_what_does_not_compile(backend):
    env = gpuvec.VectorEnv(env_of(adds_text), 2, device=backend, output="cupy" if backend == "cuda" else "numpy")
    line = adds_text.__code__.co_firstlineno + 1
    with pytest.raises(AuthoringError, match=f"{__file__}, line {line}, .*metres"):
        reset_and_step(env)
