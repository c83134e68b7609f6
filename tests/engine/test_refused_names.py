"""Functions that only some backends support are refused on all backends; the error names the line and a replacement."""

# ruff: noqa: PLW0108  # the lambdas stand for functions of an author

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numba import njit
from tests.support.arrays import step

import gpuvec
from gpuvec import SingleAgentEnv
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.kernels import make_kernels
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.compiler.diagnostics import explain_env_errors
from gpuvec.engine.compiler.functions import device_function, is_inline
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.errors import AuthoringError
from gpuvec.registration import registered_envs
from gpuvec.testing import check_env

root = np.sqrt


def make_closure() -> Any:
    square_root = np.sqrt
    return lambda x: square_root(x)


def with_try(x: float) -> float:
    try:
        return 1.0 / x
    except ZeroDivisionError:
        return 0.0


def with_finally(x: float) -> float:
    try:
        y = 1.0 / x
    finally:
        y = 2.0
    return y


def with_context_manager(x: float) -> float:
    with np.errstate(all="ignore"):
        return 1.0 / x


def helper_with_sqrt(x: float) -> float:
    return math.sqrt(x) + np.sqrt(x)


def with_keyword_only(x: float, *, factor: float = 0.5) -> float:
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
    "of a closure": (make_closure(), "there is no square_root in device code; write math.sqrt"),
    "of a called function": (lambda x: helper_with_sqrt(x), "write math.sqrt"),
    "random": (lambda x: np.float32(random.random()), "no random.random .* draw with uniform, normal or randint and the key"),
    "np.random": (lambda x: np.random.uniform(), "no np.random.uniform .* draw with uniform"),
    "print": (lambda x: print(x), "there is no print in device code; device code has no input or output: take it out"),
    "try": (with_try, r"`except ZeroDivisionError:`: device code has no try or with statement"),
    "finally": (with_finally, "device code has no try or with statement"),
    "keyword": (lambda x: with_keyword_only(x), r"no keyword-only parameters: remove the \*"),
    "with": (with_context_manager, r"`with np.errstate\(all=\"ignore\"\):`: device code has no try or with statement"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_code_is_refused(case):
    function, message = REFUSED[case]
    with pytest.raises(AuthoringError, match=message) as error:
        device_function(function)
    assert f"{__file__}, line " in str(error.value)
    assert not is_inline(function)


def supported_code(x: float) -> float:
    return max(np.float32(math.sqrt(x) * math.pi), np.float32(np.pi)) + (np.inf if x < 0.0 else 0.0)


def test_supported_code_compiles():
    compiled = device_function(supported_code)
    assert njit(lambda x: compiled(x))(4.0) == pytest.approx(2.0 * math.pi)


class State(NamedTuple):
    x: float


def make_env(function: Any) -> SingleAgentEnv:
    """An environment whose step calls `function`."""

    def step(s: Any, action: Any, key: Any, p: Any) -> Any:
        function(s.x)
        return s, 0.0, False

    return SingleAgentEnv(
        state=State, params=State(0.0), reset=lambda key, p: State(1.0), step=step, observe=lambda s, p: (s.x,),
        spaces=lambda p: (Box(-np.inf, np.inf, (1,)), Discrete(2)), max_episode_steps=10,
    )  # fmt: skip


@pytest.mark.parametrize("case", ["np.sqrt", "np.zeros", "print", "try"])
class TestAllTargets:
    def test_every_backend_refuses(self, backend, case):
        function, message = REFUSED[case]
        env = gpuvec.VectorEnv(make_env(function), 2, device=backend, output="cupy" if backend == "cuda" else "numpy")
        with pytest.raises(AuthoringError, match=message):
            env.reset(seed=0)  # A reset also composes the functions of a step.

    @pytest.mark.compile
    def test_gpu_compilation_refuses(self, case):
        if numba_cuda.SIMULATED:
            pytest.skip("the simulator compiles no kernels")
        function, message = REFUSED[case]
        with pytest.raises(AuthoringError, match=message):
            make_kernels(make_kernel_spec(make_env(function), KernelOptions(AutoresetMode.NEXT_STEP, 10)), None, "step")

    def test_check_env_refuses(self, case):
        function, message = REFUSED[case]
        with pytest.raises(AuthoringError, match=message):
            check_env(make_env(function), kernels=False)


def with_string_addition(x: float) -> Any:
    return x + "metres"  # type: ignore[operator]  # a possible mistake of an author


def reset_and_step(env: gpuvec.VectorEnv) -> None:
    env.reset(seed=0)
    step(env, np.zeros(env.num_envs, np.int32))


@pytest.mark.compile
@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels")
def test_gpu_compilation_names_the_line_of_a_type_error():
    env, line = make_env(with_string_addition), with_string_addition.__code__.co_firstlineno + 1
    kernel, *_ = make_kernels(
        make_kernel_spec(env, KernelOptions(AutoresetMode.NEXT_STEP, 10)), make_launch_config(make_schema(env), 2), "step"
    )
    raises = pytest.raises(AuthoringError, match=f"{__file__}, line {line}, .*metres")
    with raises, explain_env_errors(env, "step"):
        kernel.cubin((9, 0))


def test_every_backend_names_the_line_of_a_type_error(backend):
    env = gpuvec.VectorEnv(make_env(with_string_addition), 2, device=backend, output="cupy" if backend == "cuda" else "numpy")
    line = with_string_addition.__code__.co_firstlineno + 1
    with pytest.raises(AuthoringError, match=f"{__file__}, line {line}, .*metres"):
        reset_and_step(env)


def test_an_error_without_a_line_names_a_phase():
    """All phases of this environment are of sets, and its rewards are by role."""
    env = registered_envs("gpuvec")["EpidemicEconomy-v0"]
    function = env.phases[0].function
    raises = pytest.raises(AuthoringError, match=f"line {function.__code__.co_firstlineno}, .*unknown statement")
    with raises, explain_env_errors(env, "step"):
        raise NotImplementedError("unknown statement")
