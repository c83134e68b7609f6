"""Device names, and outputs and actions of every array library, on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # JAX warns


TRAININGS = """
from cuda.bindings import driver
from gpuvec.learners.evaluation.evaluate import evaluate
from gpuvec.learners.ppo import PPOArgs, train

for fused in (True, False):
    args = PPOArgs(num_envs=64, num_iterations=2, device="cuda:1", fused=fused)
    evaluate(train(args).network, args.env, episodes=8, device="cuda:1")
devices = [driver.cuDeviceGet(k)[1] for k in range(2)]
print([int(driver.cuDevicePrimaryCtxGetState(device)[2]) for device in devices])
"""
"""Trains and evaluates on the second of two GPUs, and prints for both whether this process has a context there."""

LOADING = """
import sys
from cuda import core
from cuda.bindings import driver
from gpuvec.engine.backends.cuda.launch import load_on_device
from gpuvec.engine.backends.device import parse_device

device = parse_device(f"cuda:{sys.argv[1]}")
major, minor = core.Device(device.ordinal).compute_capability
options = core.ProgramOptions(arch=f"sm_{major}{minor}")
code = core.Program('extern "C" __global__ void nothing() {}', "c++", options).compile("cubin").code
load_on_device(device, bytes(code), "nothing")
gpus = [driver.cuDeviceGet(k)[1] for k in range(int(driver.cuDeviceGetCount()[1]))]
contexts = [k for k, gpu in enumerate(gpus) if driver.cuDevicePrimaryCtxGetState(gpu)[2]]
print(contexts, int(driver.cuCtxGetCurrent()[1]))
"""
"""Loads a kernel, and prints the GPUs on which this process has a context, and the context that is current then."""


def host(array: Any) -> np.ndarray[Any, Any]:
    """The NumPy copy of an array of any library."""
    if isinstance(array, torch.Tensor):
        return array.cpu().numpy()
    return np.asarray(array) if hasattr(array, "unsafe_buffer_pointer") else cupy.from_dlpack(array).get()


def test_device_has_several_names(make_env: Callable[..., Any]) -> None:
    for device in ("cuda", "cuda:0", "auto"):
        env = make_env(num_envs=3, device=device)
        assert env.device == "cuda:0"
        assert env.reset(seed=0)[0].device == torch.device("cuda:0")


def test_error_of_an_invalid_index_names_the_number_of_devices(make_env: Callable[..., Any]) -> None:
    from gpuvec.errors import DeviceError

    count = torch.cuda.device_count()
    with pytest.raises(DeviceError, match=rf"cuda:{count}.* {count} CUDA device"):
        make_env(device=f"cuda:{count}")


@pytest.mark.parametrize("ordinal", range(min(2, torch.cuda.device_count())))
def test_a_kernel_is_loaded_where_no_context_is_current(ordinal: int) -> None:
    command = [sys.executable, "-c", LOADING, str(ordinal)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == f"[{ordinal}] 0"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
class TestTwoDevices:
    """Environments on two GPUs are stepped in turn; the current device does not matter and does not change."""

    @pytest.mark.parametrize("output", ["torch", "cupy"])
    @pytest.mark.parametrize("current", [0, 1])
    def test_both_devices_compute_equal_outputs(self, make_env: Callable[..., Any], output: str, current: int) -> None:
        names, mode = ("cuda:0", "cuda:1"), {"autoreset_mode": "SameStep", "output": output}
        choices = np.random.default_rng(0).integers(0, 2, (100, 500))
        with torch.cuda.device(current):
            envs = [make_env(num_envs=500, device=name, **mode) for name in names]
            reference = make_env(num_envs=500, device=names[current], **mode)
            actions = [torch.from_numpy(choice).to(names[current]) for choice in choices]
            expected_steps = [[host(x) for x in reference.step(action)[:4]] for action in actions]
            for choice, expected in zip(choices, expected_steps, strict=True):
                for name, env in zip(names, envs, strict=True):
                    *outputs, _ = env.step(torch.from_numpy(choice).to(name))
                    device_index = outputs[0].device.index if output == "torch" else outputs[0].device.id
                    assert device_index == int(name[-1])
                    for array, expected_array in zip(outputs, expected, strict=True):
                        np.testing.assert_array_equal(host(array), expected_array)
                assert torch.cuda.current_device() == cupy.cuda.runtime.getDevice() == current
            first, second = (env.state_dict()["buffers"] for env in envs)
            assert all((host(first[name]) == host(second[name])).all() for name in first)
            envs[1].load_state_dict(envs[0].state_dict())
            envs[1].set_attr("gravity", 9.0)
            envs[1].reset(seed=1, options={"reset_mask": np.arange(500) < 3})
            assert torch.cuda.current_device() == cupy.cuda.runtime.getDevice() == current

    def test_multi_agent_env_computes_equal_outputs(self, make_env: Callable[..., Any]) -> None:
        envs = [make_env("TagGridWorld-v0", num_envs=64, device=f"cuda:{k}") for k in (0, 1)]
        action = np.random.default_rng(0).integers(0, 5, (64, 11))
        for _ in range(20):
            outputs = [env.step(torch.from_numpy(action).to(f"cuda:{k}")) for k, env in enumerate(envs)]
            for first, second in zip(outputs[0][:4], outputs[1][:4], strict=True):
                np.testing.assert_array_equal(host(first), host(second))

    def test_training_computes_equal_parameters(self) -> None:
        from gpuvec.learners.ppo import PPOArgs, train

        args = PPOArgs(num_envs=256, total_steps=3 * 256 * 32, device="cuda:1", seed=1)
        other_args = PPOArgs(num_envs=256, total_steps=3 * 256 * 32, device="cuda:0", seed=1)
        first, second = (train(a).network.state_dict() for a in (args, other_args))
        assert torch.cuda.current_device() == 0
        assert all(torch.equal(first[name].cpu(), second[name].cpu()) for name in first)

    def test_training_on_another_device_needs_no_memory_of_the_first_one(self) -> None:
        process = subprocess.run([sys.executable, "-c", TRAININGS], capture_output=True, text=True, check=False, timeout=300)
        assert process.returncode == 0, process.stderr
        assert process.stdout.splitlines()[-1] == "[0, 1]"


@pytest.mark.parametrize("output", ["cupy", "jax", "dlpack"])
def test_every_output_equals_torch(make_env: Callable[..., Any], random_actions: Callable[..., Any], output: str) -> None:
    if output == "jax":
        pytest.importorskip("jax")
    steps = []
    torch_env, env = (make_env(num_envs=1000, output=o, autoreset_mode="SameStep") for o in ("torch", output))
    for action in random_actions(torch_env, 60):
        *expected, info = torch_env.step(action)
        *outputs, output_info = env.step(action)
        assert info.keys() == output_info.keys()
        steps.append((expected, outputs))
    torch.cuda.synchronize()
    cupy.cuda.Device().synchronize()
    assert any(bool(expected[2].any()) for expected, _ in steps)
    for t, (expected, outputs) in enumerate(steps):
        for k in range(4):
            np.testing.assert_array_equal(host(outputs[k]), host(expected[k]), err_msg=f"step {t}, output {k}")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("source", ["torch", "cupy", "jax"])
@pytest.mark.parametrize("output", ["torch", "cupy"])
def test_actions_of_any_library(make_env: Callable[..., Any], dtype: str, source: str, output: str) -> None:
    if source == "jax":
        pytest.importorskip("jax")
        if dtype == "int64":
            pytest.skip("JAX has no int64 unless it is enabled")
    env = make_env(num_envs=1000, output=output)
    choice = np.arange(1000) % 2
    actions: Any = choice.astype(dtype)
    if source == "torch":
        actions = torch.from_numpy(actions).cuda()
    else:
        actions = cupy.asarray(actions) if source == "cupy" else pytest.importorskip("jax").numpy.asarray(actions)
    obs = host(env.step(actions)[0])
    assert (obs[choice == 1, 1] > 0.05).all()  # The velocity of a cart that is pushed to the right is positive.
    assert (obs[choice == 0, 1] < -0.05).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", ["torch", "cupy"])
def test_continuous_actions_of_both_precisions(make_env: Callable[..., Any], dtype: str, source: str) -> None:
    env = make_env("MountainCarContinuous-v0", num_envs=1000)
    force = np.linspace(-0.9, 0.9, 1000, dtype=dtype)[:, None]
    actions = torch.from_numpy(force).cuda() if source == "torch" else cupy.asarray(force)
    np.testing.assert_allclose(host(env.step(actions)[1]), -0.1 * force[:, 0] ** 2, atol=1e-6)


def test_actions_on_the_host_are_refused(make_env: Callable[..., Any]) -> None:
    env = make_env()
    for actions in (torch.zeros(64, dtype=torch.int64), np.zeros(64, "int64")):
        with pytest.raises(ValueError, match=r"CPU.*cuda:0"):
            env.step(actions)
    with pytest.raises(TypeError, match="list"):
        env.step([0] * 64)


def test_actions_of_another_shape_or_dtype_are_refused(make_env: Callable[..., Any]) -> None:
    env = make_env()
    with pytest.raises(ValueError, match=r"\(63,\).*\(64,\)"):
        env.step(torch.zeros(63, dtype=torch.int64, device="cuda"))
    with pytest.raises(TypeError, match="float32"):
        env.step(torch.zeros(64, device="cuda"))


def test_strided_actions_are_read_by_their_strides(make_env: Callable[..., Any]) -> None:
    env = make_env(num_envs=1000)
    choice = torch.arange(2000, device="cuda") % 2
    obs = env.step(choice.view(1000, 2)[:, 1])[0]
    assert (obs[:, 1] > 0.05).all()


def test_validation_reports_an_invalid_action(make_env: Callable[..., Any]) -> None:
    from gpuvec.errors import ActionError

    env = make_env(validate=True)
    action = torch.zeros(64, dtype=torch.int64, device="cuda")
    action[41] = 7
    env.step(action)
    with pytest.raises(ActionError, match=r"41.*7"):
        env.check()
    env.check()
