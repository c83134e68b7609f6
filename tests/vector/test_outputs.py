"""Arrays of every library that a step can return, over the memory that the kernel wrote."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.arrays import address, host, on_device
from tests.support.counter_env import make, shared

from gpuvec.errors import GpuvecError, MissingExtraError

E = 5
NAMES = ("obs", "reward", "terminated", "truncated")
HERE = [("cpu", "numpy"), ("cpu", "torch"), ("cpu", "jax"), ("cpu", "dlpack")]
THERE = [pytest.param(("cuda", output), marks=pytest.mark.gpu) for output in ("torch", "cupy", "dlpack")]


@pytest.fixture(params=[*HERE, *THERE], ids="-".join)
def env(request):
    """Five environments with draws, in SAME_STEP."""
    device, output = request.param
    if device == "cuda":
        request.getfixturevalue("gpu")
    if output != "dlpack":
        pytest.importorskip(output)
    return shared("tests/Mixed-v0", E, device=device, output=output, autoreset_mode=AutoresetMode.SAME_STEP)


def arrays(result):
    """The arrays of a step."""
    return (*result[:4], result[4]["final_obs"], result[4]["_final_obs"])


def test_they_are_of_the_library_asked_for(env):
    obs, _ = env.reset(seed=0)
    kind = {"numpy": "numpy", "torch": "torch", "jax": "jaxlib", "cupy": "cupy", "dlpack": "gpuvec"}[env.output]
    result = env.step(on_device(env, np.zeros((E, 2), int)))
    state = env.get_state()
    for array in (obs, *arrays(result), *state.values()):
        assert type(array).__module__.partition(".")[0] == kind
        assert tuple(array.__dlpack_device__()) == ((2, 0) if env.device == "cuda:0" else (1, 0))
    dtypes = [str(a.dtype).rpartition(".")[2] for a in arrays(result)]
    assert dtypes == ["float32", "float32", "bool", "bool", "float32", "bool"]


def test_all_libraries_hold_the_same_numbers(env):
    """Also those of JAX, which copies memory that is not aligned as it wishes: before a step has written it."""
    reference = shared("tests/Mixed-v0", E, autoreset_mode=AutoresetMode.SAME_STEP)
    exact = env.device == "cpu"
    np.testing.assert_allclose(host(env.reset(seed=3)[0]), reference.reset(seed=3)[0], rtol=0 if exact else 1e-6)
    for t in range(40):
        actions = np.stack([np.arange(E) % 3, np.full(E, t % 4)], 1)
        found, known = host(arrays(env.step(on_device(env, actions)))), arrays(reference.step(actions))
        ended = known[-1]
        for given, expected in zip((*found[:4], found[4][ended], found[5]), (*known[:4], known[4][ended], ended), strict=True):
            np.testing.assert_allclose(given, expected, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def test_they_lie_where_the_kernel_writes(env):
    """The addresses handed to the kernel are those of the arrays returned: there is no copy in between."""
    env.reset(seed=0)
    written = []
    launch = env.simulation.step_launcher

    def spying(dtype):
        step = launch(dtype)

        def call(stream, action, outputs):
            written.append(outputs)
            step(stream, action, outputs)

        return call

    env.simulation.step_launcher = spying
    try:
        actions = on_device(env, np.zeros((E, 2), int))
        returned = [arrays(env.step(actions)) for _ in range(5)]
    finally:
        del env.simulation.step_launcher
    for outputs, result in zip(written, returned, strict=True):
        assert tuple(memoryview(outputs).cast("q")) == tuple(map(address, result))


def test_every_array_can_be_read_by_the_others_without_a_copy(device):
    torch = pytest.importorskip("torch")
    xp = np if device == "cpu" else pytest.importorskip("cupy")
    for output in ("torch", "numpy" if device == "cpu" else "cupy", "dlpack"):
        env = shared("tests/Mixed-v0", E, device=device, output=output, autoreset_mode=AutoresetMode.SAME_STEP)
        env.reset(seed=0)
        for array in arrays(env.step(on_device(env, np.zeros((E, 2), int)))):
            for read in (torch.from_dlpack, xp.from_dlpack):
                again = read(array)
                assert address(again) == address(array)
                np.testing.assert_array_equal(host(again), host(array))


def test_memory_on_a_gpu_is_cupy_s(gpu):
    cupy = pytest.importorskip("cupy")
    env = shared("tests/Mixed-v0", E, device=gpu, output="torch", autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0)
    for array in arrays(env.step(on_device(env, np.zeros((E, 2), int)))):
        attributes = cupy.cuda.runtime.pointerGetAttributes(address(array))
        assert attributes.devicePointer == address(array)
        assert attributes.device == 0


def test_torch_is_the_default_and_runs_on_the_env_s_device():
    torch = pytest.importorskip("torch")
    env = gym.make_vec("tests/Counter-v0", num_envs=2, device="cpu")
    obs, _ = env.reset(seed=0)
    assert env.output == "torch"
    assert isinstance(obs, torch.Tensor)
    assert str(obs.device) == env.device == "cpu"


def test_numpy_output_runs_on_the_cpu_unless_told_otherwise():
    assert make("tests/Counter-v0", 2, device="auto").device == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "tf"}, "output must be one of 'torch', 'cupy', 'jax', 'numpy', 'dlpack', got 'tf'"),
        ({"output": "cupy"}, "output='cupy' cannot hold memory of cpu; use 'torch', 'numpy', 'jax' or 'dlpack'"),
    ],
)
def test_outputs_that_there_are_not(arguments, message):
    with pytest.raises(ValueError, match=message):
        make("tests/Counter-v0", 2, **arguments)


@pytest.mark.parametrize(("output", "extra"), [("torch", r"install gpuvec\[train\]"), ("jax", "install jax")])
def test_a_library_that_is_missing(output, extra):
    """In a process of its own, whose imports of the library fail."""
    code = f"""
        import sys, gymnasium, gpuvec
        from gpuvec.errors import MissingExtraError
        sys.modules[{output!r}] = None
        try:
            gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device="cpu", output={output!r})
        except MissingExtraError as error:
            print(error)
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=2, device="cpu", output="numpy")
        print(env.reset(seed=0)[0].shape)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True)
    error, shape = run.stdout.splitlines()
    assert error.startswith(f"output='{output}' needs {output}")
    assert extra.replace("\\", "") in error
    assert "output='numpy'" in error
    assert shape == "(2, 4)"
    assert issubclass(MissingExtraError, GpuvecError)
    assert issubclass(MissingExtraError, ImportError)
