"""Machine code of the CPU: it is compiled from LLVM assembly or an environment, loaded, and called."""

import dataclasses
import math
import threading
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from llvmlite import binding
from tests.support.counter_env import COUNTER, Count

from gpuvec import Floats, MultiAgentEnv, Observation
from gpuvec.engine.backends.cache.store import CACHE_VARIABLE, SUBFOLDER
from gpuvec.engine.backends.cpu.object_code import compile_object, is_cacheable, load_object
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.errors import AuthoringError
from gpuvec.vector.env import VectorEnv

STORE_PRODUCT = """
@factor = internal constant i64 {factor}
define i32 @store_product(ptr %result, ptr %exception, i64 %at, i64 %value) {{
    %times = load i64, ptr @factor
    %product = mul i64 %times, %value
    %place = inttoptr i64 %at to ptr
    store i64 %product, ptr %place
    {more}
    ret i32 {status}
}}
define void @unused() {{
    call void @nowhere()
    ret void
}}
declare void @nowhere()
declare void @numba_helper()
declare float @sinf(float)
"""


def assemble(source):
    """The bitcode of LLVM assembly."""
    return binding.parse_assembly(source).as_bitcode()


def compile_store_product(factor=1, more="", status=0):
    """The object code of a function that stores `factor` times a value at an address."""
    return compile_object(assemble(STORE_PRODUCT.format(factor=factor, more=more, status=status)), "store_product", 2, 0)


def test_loaded_code_runs():
    place = np.zeros(1, np.int64)
    load_object(compile_store_product(3))(place.ctypes.data, -7)
    assert place[0] == -21


def test_codes_of_the_same_name_are_separate():
    place = np.zeros(2, np.int64)
    one, two = load_object(compile_store_product(1)), load_object(compile_store_product(2))
    one(place.ctypes.data, 10)
    two(place.ctypes.data + 8, 10)
    assert place.tolist() == [10, 20]


def test_code_that_calls_unknown_symbols_is_not_cacheable():
    assert is_cacheable(compile_store_product())
    assert is_cacheable(compile_store_product(more="call float @sinf(float 1.0)"))
    assert compile_store_product(more="call void @numba_helper()").external_symbols == "numba_helper"
    assert not is_cacheable(compile_store_product(more="call void @numba_helper()"))


def test_error_status_raises():
    place = np.zeros(1, np.int64)
    with pytest.raises(AuthoringError, match="raised an error, which a GPU cannot"):
        load_object(compile_store_product(status=1))(place.ctypes.data, 1)


def test_other_threads_run_during_machine_code():
    """A thread waits in machine code until another thread writes."""
    wait = """
    define i32 @wait(ptr %result, ptr %exception, i64 %at) {
        %place = inttoptr i64 %at to ptr
        br label %again
    again:
        %value = load atomic i64, ptr %place seq_cst, align 8
        %is_zero = icmp eq i64 %value, 0
        br i1 %is_zero, label %again, label %done
    done:
        ret i32 0
    }
    """
    place = np.zeros(1, np.int64)
    thread = threading.Thread(
        target=load_object(compile_object(assemble(wait), "wait", 1, 0)), args=(place.ctypes.data,), daemon=True
    )
    thread.start()
    place[0] = 1
    thread.join(60)
    assert not thread.is_alive()


def step_with_gamma(s, action, key, p):
    return Count(math.gamma(s.count + 3.0)), 0.0, False


def step_that_raises(s, action, key, p):
    if s.count >= 2.0:
        raise ValueError("too many")
    return Count(s.count + 1.0), 0.0, False


class TestEnvironment:
    @pytest.fixture
    def cached_files(self, tmp_path, monkeypatch):
        """A function that returns the names of the files in the cache."""
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
        return lambda: {file.name for file in (tmp_path / "cache" / SUBFOLDER).iterdir()}

    def simulation(self, step, num_envs=3):
        env = dataclasses.replace(COUNTER, step=step)
        return VectorEnv(env, num_envs, device="cpu", output="numpy", autoreset_mode=AutoresetMode.SAME_STEP)

    def test_code_that_needs_the_compiler_runs_and_is_not_cached(self, cached_files):
        """`math.gamma` is a helper function of Numba, which a process without Numba does not have."""
        env = self.simulation(step_with_gamma)
        env.reset(seed=0)
        before = cached_files()
        assert len(before) == 1
        obs, *_ = env.step(np.zeros(3, np.int64))
        np.testing.assert_allclose(obs, 2.0, rtol=1e-6)
        assert cached_files() == before

    def test_exception_in_a_step_raises(self, cached_files):
        env = self.simulation(step_that_raises)
        env.reset(seed=0)
        actions = np.zeros(3, np.int64)
        env.step(actions)
        env.step(actions)
        with pytest.raises(AuthoringError, match="raised an error, which a GPU cannot"):
            env.step(actions)


class NoParams(NamedTuple):
    pass


def test_a_state_with_many_fields_compiles():
    """LLVM truncates names of more than 1,024 characters, such as those of blocks of an inlined function of many fields."""
    fields = [*((f"x{n}", Floats) for n in range(40)), ("y", int)]
    state = NamedTuple("Wide", fields)
    source = "def reset(i, s, key, p):\n" + "".join(f"    s.x{n}[i] = np.float32({n})\n" for n in range(40))
    env = MultiAgentEnv(
        state=state, params=NoParams(), spaces=lambda p: (Box(-1.0, 99.0, (1,)), Discrete(21)), agents=lambda p: 1,
        reset=generate_function("reset", source, np=np), phases=(), reward=lambda i, s, t, p: s.x39[i],
        terminated=lambda i, s, p: False, observation=lambda p: Observation(lambda i, s, t, p: (s.x1[i],)),
        allowed=lambda i, action, s, p: action == 0 or s.y % 7 == 1,
    )  # fmt: skip
    envs = VectorEnv(env, 3, device="cpu", output="numpy")
    obs, infos = envs.reset(seed=0)
    assert (obs == 1.0).all()
    assert (infos["action_mask"] == [True] + [False] * 20).all()
    assert (envs.step(np.zeros((3, 1), np.int64))[1] == 39.0).all()
