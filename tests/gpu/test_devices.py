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


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
class TestTwoDevices:
    """Environments on two GPUs take turns; whatever device is the current one, nothing of it changes."""

    @pytest.mark.parametrize("output", ["torch", "cupy"])
    @pytest.mark.parametrize("current", [0, 1])
    def test_both_play_as_one_plays(self, make: Callable[..., Any], output: str, current: int) -> None:
        names, mode = ("cuda:0", "cuda:1"), {"autoreset_mode": "SameStep", "output": output}
        choices = np.random.default_rng(0).integers(0, 2, (100, 500))
        with torch.cuda.device(current):
            envs = [make(num_envs=500, device=name, **mode) for name in names]
            alone = make(num_envs=500, device=names[current], **mode)
            known = [[host(x) for x in alone.step(torch.from_numpy(choice).to(names[current]))[:4]] for choice in choices]
            for choice, expected in zip(choices, known, strict=True):
                for name, env in zip(names, envs, strict=True):
                    *found, _ = env.step(torch.from_numpy(choice).to(name))
                    place = found[0].device.index if output == "torch" else found[0].device.id
                    assert place == int(name[-1])
                    for array, other in zip(found, expected, strict=True):
                        np.testing.assert_array_equal(host(array), other)
                assert torch.cuda.current_device() == cupy.cuda.runtime.getDevice() == current
            first, second = (env.state_dict()["buffers"] for env in envs)
            assert all((host(first[name]) == host(second[name])).all() for name in first)
            envs[1].load_state_dict(envs[0].state_dict())
            envs[1].set_attr("gravity", 9.0)
            envs[1].reset(seed=1, options={"reset_mask": np.arange(500) < 3})
            assert torch.cuda.current_device() == cupy.cuda.runtime.getDevice() == current

    def test_many_agents(self, make: Callable[..., Any]) -> None:
        envs = [make("TagGridWorld-v0", num_envs=64, device=f"cuda:{k}") for k in (0, 1)]
        action = np.random.default_rng(0).integers(0, 5, (64, 11))
        for _ in range(20):
            found = [env.step(torch.from_numpy(action).to(f"cuda:{k}")) for k, env in enumerate(envs)]
            for first, second in zip(found[0][:4], found[1][:4], strict=True):
                np.testing.assert_array_equal(host(first), host(second))

    def test_training(self) -> None:
        from gpuvec.learners.ppo import PPOArgs, train

        args = PPOArgs(num_envs=256, total_steps=3 * 256 * 32, device="cuda:1", seed=1)
        other = PPOArgs(num_envs=256, total_steps=3 * 256 * 32, device="cuda:0", seed=1)
        first, second = (train(a).network.state_dict() for a in (args, other))
        assert torch.cuda.current_device() == 0
        assert all(torch.equal(first[name].cpu(), second[name].cpu()) for name in first)


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
