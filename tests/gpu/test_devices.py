"""Names of devices, outputs and actions of every framework on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # JAX's own


def host(array: Any) -> np.ndarray[Any, Any]:
    """Any framework's array on the host."""
    if isinstance(array, torch.Tensor):
        return array.cpu().numpy()
    return np.asarray(array) if hasattr(array, "unsafe_buffer_pointer") else cupy.from_dlpack(array).get()


def test_a_device_is_found_by_each_of_its_names(make: Callable[..., Any]) -> None:
    for given in ("cuda", "cuda:0", "auto"):
        env = make(num_envs=3, device=given)
        assert env.device == "cuda:0"
        assert env.reset(seed=0)[0].device == torch.device("cuda:0")


def test_an_index_that_does_not_exist_names_how_many_do(make: Callable[..., Any]) -> None:
    from gpuvec.errors import DeviceError

    count = torch.cuda.device_count()
    with pytest.raises(DeviceError, match=rf"cuda:{count}.* {count} CUDA device"):
        make(device=f"cuda:{count}")


def test_numpy_output_of_a_gpu_is_refused_with_a_remedy(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="ToNumpy"):
        make(output="numpy")


@pytest.mark.parametrize("output", ["cupy", "jax", "dlpack"])
def test_every_output_holds_what_torch_holds(make: Callable[..., Any], actions: Callable[..., Any], output: str) -> None:
    if output == "jax":
        pytest.importorskip("jax")
    kept = []
    ours, theirs = (make(num_envs=1000, output=o, autoreset_mode="SameStep") for o in ("torch", output))
    for action in actions(ours, 60):
        *expected, info = ours.step(action)
        *found, their_info = theirs.step(action)
        assert info.keys() == their_info.keys()
        kept.append((expected, found))
    torch.cuda.synchronize()
    cupy.cuda.Device().synchronize()
    assert any(bool(expected[2].any()) for expected, _ in kept)
    for t, (expected, found) in enumerate(kept):
        for k in range(4):
            np.testing.assert_array_equal(host(found[k]), host(expected[k]), err_msg=f"step {t}, output {k}")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("source", ["torch", "cupy", "jax"])
@pytest.mark.parametrize("output", ["torch", "cupy"])
def test_actions_come_from_any_framework(make: Callable[..., Any], dtype: str, source: str, output: str) -> None:
    if source == "jax":
        pytest.importorskip("jax")
        if dtype == "int64":
            pytest.skip("JAX has no int64 unless it is enabled")
    env = make(num_envs=1000, output=output)
    choice = np.arange(1000) % 2
    given: Any = choice.astype(dtype)
    if source == "torch":
        given = torch.from_numpy(given).cuda()
    else:
        given = cupy.asarray(given) if source == "cupy" else pytest.importorskip("jax").numpy.asarray(given)
    obs = host(env.step(given)[0])
    assert (obs[choice == 1, 1] > 0.05).all()  # pushed to the right: the cart's velocity
    assert (obs[choice == 0, 1] < -0.05).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", ["torch", "cupy"])
def test_continuous_actions_come_in_both_precisions(make: Callable[..., Any], dtype: str, source: str) -> None:
    env = make("MountainCarContinuous-v0", num_envs=1000)
    force = np.linspace(-0.9, 0.9, 1000, dtype=dtype)[:, None]
    given = torch.from_numpy(force).cuda() if source == "torch" else cupy.asarray(force)
    np.testing.assert_allclose(host(env.step(given)[1]), -0.1 * force[:, 0] ** 2, atol=1e-6)


def test_actions_that_lie_on_the_host_are_refused(make: Callable[..., Any]) -> None:
    env = make()
    for given in (torch.zeros(64, dtype=torch.int64), np.zeros(64, "int64")):
        with pytest.raises(ValueError, match=r"CPU.*cuda:0"):
            env.step(given)
    with pytest.raises(TypeError, match="list"):
        env.step([0] * 64)


def test_actions_of_another_shape_or_type_are_refused(make: Callable[..., Any]) -> None:
    env = make()
    with pytest.raises(ValueError, match=r"\(63,\).*\(64,\)"):
        env.step(torch.zeros(63, dtype=torch.int64, device="cuda"))
    with pytest.raises(TypeError, match="float32"):
        env.step(torch.zeros(64, device="cuda"))


def test_a_strided_action_is_read_as_it_stands(make: Callable[..., Any]) -> None:
    env = make(num_envs=1000)
    choice = torch.arange(2000, device="cuda") % 2
    obs = env.step(choice.view(1000, 2)[:, 1])[0]
    assert (obs[:, 1] > 0.05).all()


def test_validation_finds_a_bad_action_without_waiting(make: Callable[..., Any]) -> None:
    from gpuvec.errors import ActionError

    env = make(validate=True)
    action = torch.zeros(64, dtype=torch.int64, device="cuda")
    action[41] = 7
    env.step(action)
    with pytest.raises(ActionError, match=r"41.*7"):
        env.check()
    env.check()
