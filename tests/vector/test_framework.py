"""A step returns arrays of every supported library, which share memory with the outputs of the kernel."""

from __future__ import annotations

import re
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
CPU_OUTPUTS = [("cpu", "numpy"), ("cpu", "torch"), ("cpu", "jax"), ("cpu", "dlpack")]
CUDA_OUTPUTS = [pytest.param(("cuda", output), marks=pytest.mark.gpu) for output in ("torch", "cupy", "dlpack")]


@pytest.fixture(params=[*CPU_OUTPUTS, *CUDA_OUTPUTS], ids="-".join)
def env(request):
    """Five environments with random numbers in SAME_STEP mode."""
    device, output = request.param
    if device == "cuda":
        request.getfixturevalue("gpu")
    if output != "dlpack":
        pytest.importorskip(output)
    return shared("tests/Mixed-v0", E, device=device, output=output, autoreset_mode=AutoresetMode.SAME_STEP)


def arrays(result):
    """Returns the arrays of a step."""
    return (*result[:4], result[4]["final_obs"], result[4]["_final_obs"])


def test_arrays_have_the_type_of_the_output_library(env):
    obs, _ = env.reset(seed=0)
    kind = {"numpy": "numpy", "torch": "torch", "jax": "jaxlib", "cupy": "cupy", "dlpack": "gpuvec"}[env.output]
    result = env.step(on_device(env, np.zeros((E, 2), int)))
    state = env.get_state()
    for array in (obs, *arrays(result), *state.values()):
        assert type(array).__module__.partition(".")[0] == kind
        assert tuple(array.__dlpack_device__()) == ((2, 0) if env.device == "cuda:0" else (1, 0))
    dtypes = [str(a.dtype).rpartition(".")[2] for a in arrays(result)]
    assert dtypes == ["float32", "float32", "bool", "bool", "float32", "bool"]


def test_all_libraries_return_the_same_values(env):
    """JAX copies memory without its required alignment, and would do so before the kernel writes the outputs."""
    reference = shared("tests/Mixed-v0", E, autoreset_mode=AutoresetMode.SAME_STEP)
    exact = env.device == "cpu"
    np.testing.assert_allclose(host(env.reset(seed=3)[0]), reference.reset(seed=3)[0], rtol=0 if exact else 1e-6)
    for t in range(40):
        actions = np.stack([np.arange(E) % 3, np.full(E, t % 4)], 1)
        actual, reference_arrays = host(arrays(env.step(on_device(env, actions)))), arrays(reference.step(actions))
        ended = reference_arrays[-1]
        for array, expected in zip(
            (*actual[:4], actual[4][ended], actual[5]), (*reference_arrays[:4], reference_arrays[4][ended], ended), strict=True
        ):
            np.testing.assert_allclose(array, expected, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def test_returned_arrays_share_memory_with_the_kernel_outputs(env):
    """The kernel receives the addresses of the returned arrays, so there is no copy."""
    env.reset(seed=0)
    kernel_outputs = []
    launch = env.simulation.step_launcher

    def record_launcher(dtype):
        step = launch(dtype)

        def call(stream, action, outputs):
            kernel_outputs.append(outputs)
            step(stream, action, outputs)

        return call

    env.simulation.step_launcher = record_launcher
    try:
        actions = on_device(env, np.zeros((E, 2), int))
        returned = [arrays(env.step(actions)) for _ in range(5)]
    finally:
        del env.simulation.step_launcher
    for outputs, result in zip(kernel_outputs, returned, strict=True):
        assert tuple(memoryview(outputs).cast("q")) == tuple(map(address, result))


def test_every_array_converts_to_other_libraries_without_a_copy(device):
    torch = pytest.importorskip("torch")
    xp = np if device == "cpu" else pytest.importorskip("cupy")
    for output in ("torch", "numpy" if device == "cpu" else "cupy", "dlpack"):
        env = shared("tests/Mixed-v0", E, device=device, output=output, autoreset_mode=AutoresetMode.SAME_STEP)
        env.reset(seed=0)
        for array in arrays(env.step(on_device(env, np.zeros((E, 2), int)))):
            for read in (torch.from_dlpack, xp.from_dlpack):
                converted = read(array)
                assert address(converted) == address(array)
                np.testing.assert_array_equal(host(converted), host(array))


def test_cupy_recognizes_memory_on_a_gpu(gpu):
    cupy = pytest.importorskip("cupy")
    env = shared("tests/Mixed-v0", E, device=gpu, output="torch", autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0)
    for array in arrays(env.step(on_device(env, np.zeros((E, 2), int)))):
        attributes = cupy.cuda.runtime.pointerGetAttributes(address(array))
        assert attributes.devicePointer == address(array)
        assert attributes.device == 0


def test_torch_is_the_default_output():
    torch = pytest.importorskip("torch")
    env = gym.make_vec("tests/Counter-v0", num_envs=2, device="cpu")
    obs, _ = env.reset(seed=0)
    assert env.output == "torch"
    assert isinstance(obs, torch.Tensor)
    assert str(obs.device) == env.device == "cpu"


def test_numpy_output_selects_the_cpu_by_default():
    assert make("tests/Counter-v0", 2, device="auto").device == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "tf"}, "output must be one of 'torch', 'cupy', 'jax', 'numpy', 'dlpack', got 'tf'"),
        ({"output": "cupy"}, "output='cupy' cannot hold memory of cpu; use 'torch', 'numpy', 'jax' or 'dlpack'"),
    ],
)
def test_unsupported_outputs_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        make("tests/Counter-v0", 2, **arguments)


@pytest.mark.parametrize(("output", "extra"), [("torch", r"pip install .*\[train\]"), ("jax", "pip install jax")])
def test_missing_library_raises(output, extra):
    """The test runs in a subprocess in which imports of the library fail."""
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
    assert re.search(extra, error)
    assert "output='numpy'" in error
    assert shape == "(2, 4)"
    assert issubclass(MissingExtraError, GpuvecError)
    assert issubclass(MissingExtraError, ImportError)
