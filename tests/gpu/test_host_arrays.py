"""`output="numpy"` on a GPU: outputs are copies on the host, and actions may come from the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: extra `train`")
cupy = pytest.importorskip("cupy", reason="needs CuPy: extra `cuda13` or `cuda12`")

from gpuvec.vector.host_copies import copies_on_host
from gpuvec.vector.wrappers import NormalizeObservation, RecordEpisodeStatistics, ToNumpy

OUTPUT_NAMES = ("obs", "reward", "terminated", "truncated")


def arrays_by_name(result: Any) -> dict[str, Any]:
    """All arrays of the outputs of a step."""
    *arrays, infos = result
    return dict(zip(OUTPUT_NAMES, arrays, strict=True)) | {k: v for k, v in infos.items() if not isinstance(v, dict)}


@pytest.mark.parametrize("autoreset_mode", ["NextStep", "SameStep"])
def test_numpy_outputs_equal_torch(
    name: str, make_env: Callable[..., Any], random_actions: Callable[..., Any], autoreset_mode: str
) -> None:
    numpy_env, torch_env = (
        make_env(name, num_envs=1000, output=output, autoreset_mode=autoreset_mode, max_episode_steps=20)
        for output in ("numpy", "torch")
    )
    assert numpy_env.device == "cuda:0"
    steps = []
    np.testing.assert_array_equal(numpy_env.reset(seed=3)[0], torch_env.reset(seed=3)[0].cpu().numpy())
    for action in random_actions(torch_env, 50):
        expected, outputs = (arrays_by_name(env.step(a)) for env, a in ((torch_env, action), (numpy_env, action.cpu().numpy())))
        assert outputs.keys() == expected.keys()
        steps.append((expected, outputs))
    for t, (expected, outputs) in enumerate(steps):  # Later steps do not overwrite earlier arrays.
        for key, array in outputs.items():
            assert type(array) is np.ndarray
            assert array.flags.writeable
            np.testing.assert_array_equal(array, expected[key].cpu().numpy(), err_msg=f"step {t}, {key}")
    for field, values in numpy_env.get_state().items():
        assert type(values) is np.ndarray
        np.testing.assert_array_equal(values, torch_env.get_state()[field].cpu().numpy())


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("source", ["numpy", "torch", "cupy", "list", "torch.cuda"])
def test_actions_of_host_and_device(make_env: Callable[..., Any], dtype: str, source: str) -> None:
    env = make_env(num_envs=1000, output="numpy")
    choice = (np.arange(1000) % 2).astype(dtype)
    sources: dict[str, Callable[[Any], Any]] = {
        "numpy": lambda x: x,
        "torch": torch.from_numpy,
        "cupy": cupy.asarray,
        "list": lambda x: x.astype(np.int64).tolist(),
        "torch.cuda": lambda x: torch.from_numpy(x).cuda(),
    }
    obs = env.step(sources[source](choice))[0]
    assert (obs[choice == 1, 1] > 0.05).all()  # The velocity of a cart that is pushed to the right is positive.
    assert (obs[choice == 0, 1] < -0.05).all()


def test_action_array_may_change_after_the_step(make_env: Callable[..., Any]) -> None:
    """The upload is asynchronous, but it must not read the array of the caller after `step` has returned."""
    env = make_env(num_envs=1 << 20, output="numpy")
    choice = np.ones(1 << 20, np.int64)
    obs = env.step(choice)[0]
    choice[:] = 0
    assert (obs[:, 1] > 0.05).all()


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (np.zeros(64, np.float64), TypeError, "dtype float64"),
        (np.zeros(63, np.int64), ValueError, r"shape \(63,\)"),
        (np.zeros(64, object), TypeError, "dtype object"),
        (1, TypeError, "actions are 1"),
        (None, TypeError, "actions are None"),
    ],
)
def test_invalid_actions_are_refused(make_env: Callable[..., Any], actions: Any, error: type[Exception], message: str) -> None:
    env = make_env(num_envs=64, output="numpy")
    before = env.get_state()
    with pytest.raises(error, match=message):
        env.step(actions)
    for name, values in env.get_state().items():
        np.testing.assert_array_equal(values, before[name])


def test_out_takes_host_arrays(make_env: Callable[..., Any]) -> None:
    numpy_env, torch_env = (make_env(num_envs=64, output=output) for output in ("numpy", "torch"))
    storage = {"obs": np.zeros((3, 64, 4), np.float32), "terminated": np.zeros((3, 64), bool)}
    choice = np.ones(64, np.int64)
    for t in range(3):
        obs, reward, terminated, *_ = numpy_env.step(choice, out={name: array[t] for name, array in storage.items()})
        expected = torch_env.step(torch.from_numpy(choice).cuda())
        assert np.shares_memory(obs, storage["obs"][t])
        assert np.shares_memory(terminated, storage["terminated"][t])
        np.testing.assert_array_equal(storage["obs"][t], expected[0].cpu().numpy())
        np.testing.assert_array_equal(reward, expected[1].cpu().numpy())
    for invalid in (np.zeros((64, 3), np.float32), np.zeros((64, 4)), cupy.zeros((64, 4), np.float32)):
        with pytest.raises(ValueError, match="on the host"):
            numpy_env.step(choice, out={"obs": invalid})
    with pytest.raises(ValueError, match="has unknown names"):
        numpy_env.step(choice, out={"observation": storage["obs"][0]})


def test_multi_agent_outputs_equal_torch(make_env: Callable[..., Any]) -> None:
    numpy_env, torch_env = (make_env("TagContinuous-v0", num_envs=16, output=output) for output in ("numpy", "torch"))
    assert numpy_env.roles.keys() == torch_env.roles.keys()
    numpy_env.action_space.seed(0)
    for _ in range(20):
        action = numpy_env.action_space.sample()
        expected, outputs = (
            arrays_by_name(torch_env.step(torch.from_numpy(action).cuda())),
            arrays_by_name(numpy_env.step(action)),
        )
        for key, array in outputs.items():
            np.testing.assert_array_equal(array, expected[key].cpu().numpy(), err_msg=key)


def test_rollout_equals_torch(make_env: Callable[..., Any]) -> None:
    numpy_env, torch_env = (make_env(num_envs=256, output=output, autoreset_mode="SameStep") for output in ("numpy", "torch"))
    rollout, expected = numpy_env.rollout(32), torch_env.rollout(32)
    for name, array in rollout._asdict().items():
        assert type(array) is np.ndarray
        if name != "final_obs":  # undefined in rows whose episode continues
            np.testing.assert_array_equal(array, getattr(expected, name).cpu().numpy(), err_msg=name)
    replay = numpy_env.rollout(32, policy=rollout.action, out=rollout)
    assert replay.obs is rollout.obs
    np.testing.assert_array_equal(rollout.obs, torch_env.rollout(32, policy=expected.action).obs.cpu().numpy())


def test_checkpoint_of_numpy_arrays_continues(make_env: Callable[..., Any]) -> None:
    env = make_env(num_envs=64, output="numpy")
    choice = np.ones(64, np.int64)
    env.step(choice)
    checkpoint = env.state_dict()
    assert all(type(array) is np.ndarray for array in checkpoint["buffers"].values())
    expected = env.step(choice)[0]
    env.load_state_dict(checkpoint)
    np.testing.assert_array_equal(env.step(choice)[0], expected)


def test_wrapper_to_numpy_gives_equal_outputs(make_env: Callable[..., Any]) -> None:
    """Compares `ToNumpy` around wrappers on the device with the same wrappers around an environment with NumPy outputs."""
    device_wrappers = ToNumpy(NormalizeObservation(RecordEpisodeStatistics(make_env(num_envs=64, output="torch"))))
    host_wrappers = NormalizeObservation(RecordEpisodeStatistics(make_env(num_envs=64, output="numpy")))
    for env in (device_wrappers, host_wrappers):
        env.reset(seed=1)
    for t in range(60):
        choice = np.arange(64) * t % 2
        outputs, expected = device_wrappers.step(choice), host_wrappers.step(choice)
        np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(outputs[4]["episode"]["r"], expected[4]["episode"]["r"])
        assert type(outputs[4]["_episode"]) is np.ndarray


def test_copies_of_any_memory_layout() -> None:
    torch.manual_seed(0)
    base = torch.randn(33, 7, device="cuda")
    arrays = [base, base.T, base[::2], base > 0, base[:0], cupy.arange(5), base.cpu(), [1, 2], base]
    copies = copies_on_host(arrays)
    for array, copy in zip(arrays, copies, strict=True):
        expected = np.asarray(
            array.cpu()
            if isinstance(array, torch.Tensor)
            else cupy.asnumpy(array)
            if isinstance(array, cupy.ndarray)
            else array
        )
        assert copy.dtype == expected.dtype
        np.testing.assert_array_equal(copy, expected)


def test_capture_is_refused(make_env: Callable[..., Any]) -> None:
    env = make_env(num_envs=64, output="numpy", buffers=2)
    action = cupy.zeros(64, np.int64)
    env.step(action)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        env.step(action)
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="cannot wait"):
                env.step(action)
        finally:
            stream.end_capture()
