"""Functions in CUDA C++ over index sets, arrays and images: equal to those in Python, bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.bundled_envs import BUNDLED_ENVS
from tests.support.cuda_c_functions import ON_CPU, needs_host_compiler
from tests.support.meadow_env import MEADOW

from gpuvec import MultiAgentEnv, SingleAgentEnv
from gpuvec.engine.backends.cuda.cpp.cuda_functions import make_cuda_functions
from gpuvec.engine.backends.cuda.cpp.source import compile_source, cuda_c_file
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.errors import AuthoringError
from gpuvec.testing.environment_check import check_cuda_source
from gpuvec.vector.env import VectorEnv

OPTIONS = KernelOptions(AutoresetMode.DISABLED, None)

BREAKOUT = BUNDLED_ENVS["Breakout-v0"]
IMAGE = {"image_bytes": 1}
CASES: list[tuple[Any, dict[str, Any]]] = [
    (BREAKOUT, {"brick_rows": 2}),
    (MEADOW, {"image_bytes": 4, "height": 4}),
    # The functions of these are those of the cases above, with features of agents as in the Tag games, with other sizes, and
    # with pixels of uint8 as in Breakout.
    (MEADOW, {}),
    (MEADOW, {"sheep": 5, "height": 7, "width": 11}),
    (MEADOW, IMAGE),
]
WRONG_TYPES = {  # {fault: (old, new, the type that the message names)}
    "cells": ("graze(int row, int column", "graze(int cell", r"void graze\(int row, int column, State& s, const Key& key"),
    "pairs": (
        "give(int i, int j, State& s, Action action,",
        "give(int i, int j, State& s,",
        r"void give\(int i, int j, State&",
    ),
    "world": ("fall(State& s", "fall(int i, State& s", r"void fall\(State& s, const Key& key, const Params& p\)"),
    "assignment": ("Tuple<float, int, bool> weather", "Tuple<float, int, int> weather", r"Tuple<float, int, bool> weather\("),
    "sum": ("int grass_of(", "bool grass_of(", r"int grass_of\(int row, int column, const State& s, const Params& p\)"),
}


def with_params(env: Any, params: dict[str, Any]) -> Any:
    """Returns `env` with other parameters."""
    return dataclasses.replace(env, params=env.params._replace(**params))


def with_file(env: Any, file: Any, old: str, new: str) -> Any:
    """Returns `env` whose functions in CUDA C++ are in `file`: its own, in which `new` replaces `old`."""
    text = cuda_c_file(env).read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return dataclasses.replace(env, cuda_c=str(file))


@pytest.mark.first_variants(1)
@needs_host_compiler
@pytest.mark.parametrize(("env", "params"), CASES, ids=lambda x: "-".join(x) if isinstance(x, dict) else None)
def test_functions_compute_what_python_does(env, params):
    """Observations, rewards and all fields of the states are equal in each step of several episodes."""
    options = {"output": "numpy", "autoreset_mode": "SameStep", "max_episode_steps": 20}
    cuda_c_env = VectorEnv(with_params(env, params), 4, **ON_CPU, **options)
    python_env = VectorEnv(with_params(env, params), 4, device="cpu", **options)
    cuda_c_env.action_space.seed(0)
    np.testing.assert_array_equal(cuda_c_env.reset(seed=5)[0], python_env.reset(seed=5)[0])
    num_ended = 0
    for _ in range(40):
        action = cuda_c_env.action_space.sample()
        outputs, expected = cuda_c_env.step(action), python_env.step(action)
        for output, expected_output in zip(outputs[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(output, expected_output)
        states, expected_states = cuda_c_env.get_state(), python_env.get_state()
        for name, values in expected_states.items():
            np.testing.assert_array_equal(states[name], values, err_msg=name)
        for name, values in expected[4].items():
            np.testing.assert_equal(outputs[4][name], values, err_msg=name)
        num_ended += int(np.sum(outputs[2] | outputs[3]))
    assert num_ended >= 8


def test_all_functions_are_replaced():
    """No phase, reduction or pixel of the two environments stays in Python."""
    for env in (MEADOW, with_params(MEADOW, IMAGE), BREAKOUT):
        replaced = make_cuda_functions(make_kernel_spec(env, OPTIONS)).spec.env
        if isinstance(replaced, SingleAgentEnv):
            functions = [replaced.reset, replaced.step, replaced.observe]
        else:
            assert isinstance(replaced, MultiAgentEnv)
            observation = replaced.observation(replaced.params)
            functions = [getattr(phase, "function", phase) for phase in (*replaced.reset, *replaced.phases)]
            functions += [replaced.reward, replaced.terminated, replaced.allowed, replaced.metrics]
            functions.append(observation.pixel or observation.self_features)
        assert all(hasattr(function, "author") for function in functions)


@pytest.mark.compile
@pytest.mark.parametrize(("env", "params"), [CASES[0], CASES[2], CASES[-1]], ids=["breakout", "meadow", "meadow image"])
def test_functions_compile_for_a_gpu(env, params):
    env = with_params(env, params)
    check_cuda_source(env)
    assert len(compile_source(make_cuda_functions(make_kernel_spec(env, OPTIONS)).source, (9, 0))) > 1000


@pytest.mark.compile
@pytest.mark.parametrize(("old", "new", "declaration"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_type_is_refused_with_the_right_one(old, new, declaration, tmp_path):
    with pytest.raises(AuthoringError, match=rf"(?s)own.cu\(\d+\): error: .*must have the type: {declaration}"):
        check_cuda_source(with_file(MEADOW, tmp_path / "own.cu", old, new))


@needs_host_compiler
def test_function_missing_from_the_file_stays_in_python(tmp_path):
    """The image is computed in Python, the game in CUDA C++."""
    text = cuda_c_file(BREAKOUT).read_text()
    env = with_file(BREAKOUT, tmp_path / "own.cu", text[text.index("__device__ Ints<4> observe(") :], "")
    options = {"output": "numpy", "max_episode_steps": 9}
    cuda_c_env, python_env = VectorEnv(env, 2, **ON_CPU, **options), VectorEnv(BREAKOUT, 2, device="cpu", **options)
    for vector_env in (cuda_c_env, python_env):
        vector_env.reset(seed=1)
    for _ in range(20):
        action = np.ones(2, np.int32)
        np.testing.assert_array_equal(cuda_c_env.step(action)[0], python_env.step(action)[0])
