"""Errors of invalid arguments name the argument, the allowed values and the correction."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from tests.support.arrays import reset, step
from tests.support.counter_env import COUNTER, make

from gpuvec import errors


@pytest.mark.parametrize("num_envs", [0, -3, 1.5, True, "4", None])
def test_invalid_num_envs_raise(num_envs):
    with pytest.raises(ValueError, match=f"num_envs must be an integer of at least 1, got {num_envs!r}"):
        make("gpuvec/CartPole-v1", num_envs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"autoreset_mode": "SameSteps"}, "autoreset_mode must be .*'NextStep', 'SameStep', 'Disabled', got 'SameSteps'"),
        ({"autoreset_mode": None}, "autoreset_mode must be .* got None"),
        (
            {"max_episode_steps": 0},
            r"max_episode_steps must be at least 1 and at most 2147483647, None or -1 .* or 'declared' .*, got 0",
        ),
        ({"max_episode_steps": 2**31}, "max_episode_steps .* at most 2147483647, .* got 2147483648"),
        ({"max_episode_steps": np.array([1, 2])}, "max_episode_steps .* got array"),
        ({"gravity": np.inf}, "gravity is inf; it must be finite"),
        ({"max_episode_steps": 1.5}, "max_episode_steps .* got 1.5"),
        ({"max_episode_steps": True}, "max_episode_steps .* got True"),
        ({"device": "gpu"}, 'device must be "auto", "cpu", "cuda".* got \'gpu\''),
        ({"device": "cpu:1"}, "device must be .* got 'cpu:1'"),
        ({"device": 0}, "device must be .* got 0"),
        ({"render_mode": "human"}, "render_mode must be None or 'rgb_array', got 'human'"),
        ({"cart_mass": -1.0}, "cart_mass is -1.0; it must be greater than 0"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        make("gpuvec/CartPole-v1", 2, **arguments)


def test_cuda_device_without_a_driver_raises():
    """The test runs in a subprocess in which loading the driver fails, as on a machine without a driver."""
    code = """
        import gymnasium, gpuvec
        from gpuvec.engine.backends import device
        from gpuvec.errors import DeviceError
        from cuda.bindings import driver

        def none(flags):
            raise RuntimeError("Failed to dlopen libcuda.so.1")

        driver.cuInit = none
        print(gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device="auto", output="dlpack").device)
        try:
            gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device="cuda")
        except DeviceError as error:
            print(error)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)
    device, error = run.stdout.splitlines()
    assert device == "cpu"
    assert error.startswith("no usable CUDA driver")
    assert 'device="cpu"' in error
    assert "gpuvec doctor" in error


def test_missing_gpu_raises(gpu):
    with pytest.raises(errors.DeviceError, match=r"'cuda:99' does not exist: this machine has \d+ CUDA device"):
        make("gpuvec/CartPole-v1", 2, device="cuda:99", output="dlpack")


def test_too_many_envs_for_the_device_raise(device):
    message = r"[\d,]+ environments needs [\d,]+ bytes on .*, where [\d,]+ are free; use fewer"
    with pytest.raises(errors.OutOfMemoryError, match=message):
        make("gpuvec/CartPole-v1", 10**10, device=device)
    env = make("tests/Counter-v0", 2, device=device)  # the process continues
    np.testing.assert_array_equal(reset(env, seed=0), np.zeros((2, 1)))
    env.close()


def test_too_many_buffers_for_the_device_raise():
    with pytest.raises(errors.OutOfMemoryError, match="a ring of 1000000000 output buffers needs"):
        make("gpuvec/CartPole-v1", 1000, buffers=10**9)


def test_step_in_a_forked_child_raises_on_a_gpu(gpu):
    """The child process gets an error instead of a deadlock."""
    code = """
        import os, gymnasium, gpuvec, cupy
        from gpuvec.errors import ForkError
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device="cuda", output="cupy")
        env.reset(seed=0)
        actions = cupy.zeros(2, int)
        env.step(actions)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                env.step(actions)
            except ForkError as error:
                code = 0 if "spawn" in str(error) else 2
            os._exit(code)
        env.step(actions)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)
    assert run.stdout == "0\n"


def test_step_in_a_forked_child_works_on_the_cpu():
    """The child process starts the threads of a large batch again."""
    code = """
        import os, gymnasium, gpuvec, numpy as np
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2**15, device="cpu", output="numpy")
        env.reset(seed=0)
        actions = np.zeros(2**15, int)
        env.step(actions)
        child = os.fork()
        if child == 0:
            os._exit(0 if np.isfinite(env.step(actions)[0]).all() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert run.stdout == "0\n"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.AuthoringError, TypeError),
        (errors.UnknownParameterError, TypeError),
        (errors.DeviceError, RuntimeError),
        (errors.ForkError, RuntimeError),
        (errors.OutOfMemoryError, MemoryError),
        (errors.MissingExtraError, ImportError),
        (errors.StaleGraphError, RuntimeError),
        (errors.ActionError, ValueError),
        (errors.StateError, ValueError),
    ],
)
def test_every_error_is_also_a_builtin_exception(error, builtin):
    assert issubclass(error, errors.GpuvecError)
    assert issubclass(error, builtin)


def test_failed_construction_changes_nothing():
    """The same environment can be made afterwards, and its declaration has not changed."""
    with pytest.raises(ValueError, match="it must be below maximum"):
        make("tests/Counter-v0", 2, first=9.0)
    assert COUNTER.params.first == 0.0
    env = make("tests/Counter-v0", 2)
    env.reset(seed=0)
    assert step(env, [1, 1])[0].tolist() == [[1.0], [1.0]]
