"""Machine code of the CPU: what is made of LLVM assembly or of an environment, loaded, and called."""

import dataclasses
import math
import threading

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.counter_env import COUNTER, Count

from gpuvec.engine.backends.cache.store import CACHE_VARIABLE, SUBFOLDER
from gpuvec.engine.backends.cpu.object_code import compile_object, is_cacheable, load_object
from gpuvec.errors import AuthoringError
from gpuvec.vector.env import VectorEnv

PUT = """
@factor = internal constant i64 {factor}
define i32 @put(ptr %result, ptr %exception, i64 %at, i64 %value) {{
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


def put(factor=1, more="", status=0):
    return compile_object(PUT.format(factor=factor, more=more, status=status), "put", 2, 0)


def test_what_is_loaded_is_called():
    place = np.zeros(1, np.int64)
    load_object(put(3))(place.ctypes.data, -7)
    assert place[0] == -21


def test_code_of_the_same_name_stays_apart():
    place = np.zeros(2, np.int64)
    one, two = load_object(put(1)), load_object(put(2))
    one(place.ctypes.data, 10)
    two(place.ctypes.data + 8, 10)
    assert place.tolist() == [10, 20]


def test_it_needs_what_it_calls_and_no_process_has():
    assert is_cacheable(put())
    assert is_cacheable(put(more="call float @sinf(float 1.0)"))
    assert put(more="call void @numba_helper()").external_symbols == "numba_helper"
    assert not is_cacheable(put(more="call void @numba_helper()"))


def test_an_error_is_told():
    place = np.zeros(1, np.int64)
    with pytest.raises(AuthoringError, match="raised an error, which a GPU cannot"):
        load_object(put(status=1))(place.ctypes.data, 1)


def test_other_threads_run_meanwhile():
    """One thread waits in machine code until another writes."""
    wait = """
    define i32 @wait(ptr %result, ptr %exception, i64 %at) {
        %place = inttoptr i64 %at to ptr
        br label %again
    again:
        %seen = load atomic i64, ptr %place seq_cst, align 8
        %nothing = icmp eq i64 %seen, 0
        br i1 %nothing, label %again, label %done
    done:
        ret i32 0
    }
    """
    place = np.zeros(1, np.int64)
    thread = threading.Thread(target=load_object(compile_object(wait, "wait", 1, 0)), args=(place.ctypes.data,), daemon=True)
    thread.start()
    place[0] = 1
    thread.join(60)
    assert not thread.is_alive()


def growing(s, action, key, p):
    return Count(math.gamma(s.count + 3.0)), 0.0, False


def failing(s, action, key, p):
    if s.count >= 2.0:
        raise ValueError("too many")
    return Count(s.count + 1.0), 0.0, False


class TestEnvironment:
    @pytest.fixture
    def kept(self, tmp_path, monkeypatch):
        """The names of files on disk."""
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
        return lambda: {file.name for file in (tmp_path / "kept" / SUBFOLDER).iterdir()}

    def simulation(self, step, num_envs=3):
        env = dataclasses.replace(COUNTER, step=step)
        return VectorEnv(env, num_envs, device="cpu", output="numpy", autoreset_mode=AutoresetMode.SAME_STEP)

    def test_one_that_needs_the_compiler_runs_and_is_not_kept(self, kept):
        """`math.gamma` is a function of Numba's own."""
        env = self.simulation(growing)
        env.reset(seed=0)
        before = kept()
        assert len(before) == 1
        obs, *_ = env.step(np.zeros(3, np.int64))
        np.testing.assert_allclose(obs, 2.0, rtol=1e-6)
        assert kept() == before

    def test_one_that_raises_says_so(self, kept):
        env = self.simulation(failing)
        env.reset(seed=0)
        actions = np.zeros(3, np.int64)
        env.step(actions)
        env.step(actions)
        with pytest.raises(AuthoringError, match="raised an error, which a GPU cannot"):
            env.step(actions)
