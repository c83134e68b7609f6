"""output="numpy" on a GPU: copies on the host that hold what tensors hold, and actions from the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: extra `train`")
cupy = pytest.importorskip("cupy", reason="needs CuPy: extra `cuda13` or `cuda12`")

from gpuvec.vector.host_copies import copies_on_host
from gpuvec.vector.wrappers import NormalizeObservation, RecordEpisodeStatistics, ToNumpy

STEP = ("obs", "reward", "terminated", "truncated")


def every_array(result: Any) -> dict[str, Any]:
    *arrays, infos = result
    return dict(zip(STEP, arrays, strict=True)) | {k: v for k, v in infos.items() if not isinstance(v, dict)}


@pytest.mark.parametrize("autoreset_mode", ["NextStep", "SameStep"])
def test_numpy_holds_what_torch_holds(
    name: str, make: Callable[..., Any], actions: Callable[..., Any], autoreset_mode: str
) -> None:
    ours, theirs = (
        make(name, num_envs=1000, output=output, autoreset_mode=autoreset_mode, max_episode_steps=20)
        for output in ("numpy", "torch")
    )
    assert ours.device == "cuda:0"
    kept = []
    np.testing.assert_array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0].cpu().numpy())
    for action in actions(theirs, 50):
        known, found = (every_array(env.step(a)) for env, a in ((theirs, action), (ours, action.cpu().numpy())))
        assert found.keys() == known.keys()
        kept.append((known, found))
    for t, (known, found) in enumerate(kept):  # later steps have written nothing over earlier arrays
        for key, array in found.items():
            assert type(array) is np.ndarray
            assert array.flags.writeable
            np.testing.assert_array_equal(array, known[key].cpu().numpy(), err_msg=f"step {t}, {key}")
    for field, values in ours.get_state().items():
        assert type(values) is np.ndarray
        np.testing.assert_array_equal(values, theirs.get_state()[field].cpu().numpy())


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("source", ["numpy", "torch", "cupy", "list", "torch.cuda"])
def test_actions_come_from_the_host_and_from_the_device(make: Callable[..., Any], dtype: str, source: str) -> None:
    env = make(num_envs=1000, output="numpy")
    choice = (np.arange(1000) % 2).astype(dtype)
    sources: dict[str, Callable[[Any], Any]] = {
        "numpy": lambda x: x,
        "torch": torch.from_numpy,
        "cupy": cupy.asarray,
        "list": lambda x: x.astype(np.int64).tolist(),
        "torch.cuda": lambda x: torch.from_numpy(x).cuda(),
    }
    obs = env.step(sources[source](choice))[0]
    assert (obs[choice == 1, 1] > 0.05).all()  # pushed to the right: the cart's velocity
    assert (obs[choice == 0, 1] < -0.05).all()


def test_actions_may_be_changed_after_the_step(make: Callable[..., Any]) -> None:
    """The upload is asynchronous, so it must not read the caller's array once `step` has returned."""
    env = make(num_envs=1 << 20, output="numpy")
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
def test_wrong_actions(make: Callable[..., Any], actions: Any, error: type[Exception], message: str) -> None:
    env = make(num_envs=64, output="numpy")
    before = env.get_state()
    with pytest.raises(error, match=message):
        env.step(actions)
    for name, values in env.get_state().items():
        np.testing.assert_array_equal(values, before[name])


def test_out_names_host_arrays(make: Callable[..., Any]) -> None:
    ours, theirs = (make(num_envs=64, output=output) for output in ("numpy", "torch"))
    storage = {"obs": np.zeros((3, 64, 4), np.float32), "terminated": np.zeros((3, 64), bool)}
    choice = np.ones(64, np.int64)
    for t in range(3):
        obs, reward, terminated, *_ = ours.step(choice, out={name: array[t] for name, array in storage.items()})
        known = theirs.step(torch.from_numpy(choice).cuda())
        assert np.shares_memory(obs, storage["obs"][t])
        assert np.shares_memory(terminated, storage["terminated"][t])
        np.testing.assert_array_equal(storage["obs"][t], known[0].cpu().numpy())
        np.testing.assert_array_equal(reward, known[1].cpu().numpy())
    for wrong in (np.zeros((64, 3), np.float32), np.zeros((64, 4)), cupy.zeros((64, 4), np.float32)):
        with pytest.raises(ValueError, match="on the host"):
            ours.step(choice, out={"obs": wrong})
    with pytest.raises(ValueError, match="has unknown names"):
        ours.step(choice, out={"observation": storage["obs"][0]})


def test_many_agents_and_roles(make: Callable[..., Any]) -> None:
    ours, theirs = (make("TagContinuous-v0", num_envs=16, output=output) for output in ("numpy", "torch"))
    assert ours.roles.keys() == theirs.roles.keys()
    ours.action_space.seed(0)
    for _ in range(20):
        action = ours.action_space.sample()
        known, found = every_array(theirs.step(torch.from_numpy(action).cuda())), every_array(ours.step(action))
        for key, array in found.items():
            np.testing.assert_array_equal(array, known[key].cpu().numpy(), err_msg=key)


def test_rollouts(make: Callable[..., Any]) -> None:
    ours, theirs = (make(num_envs=256, output=output, autoreset_mode="SameStep") for output in ("numpy", "torch"))
    found, known = ours.rollout(32), theirs.rollout(32)
    for name, array in found._asdict().items():
        assert type(array) is np.ndarray
        if name != "final_obs":  # rows of episodes that go on mean nothing
            np.testing.assert_array_equal(array, getattr(known, name).cpu().numpy(), err_msg=name)
    again = ours.rollout(32, policy=found.action, out=found)
    assert again.obs is found.obs
    np.testing.assert_array_equal(found.obs, theirs.rollout(32, policy=known.action).obs.cpu().numpy())


def test_a_checkpoint_is_of_numpy_arrays_and_goes_on(make: Callable[..., Any]) -> None:
    env = make(num_envs=64, output="numpy")
    choice = np.ones(64, np.int64)
    env.step(choice)
    saved = env.state_dict()
    assert all(type(array) is np.ndarray for array in saved["buffers"].values())
    known = env.step(choice)[0]
    env.load_state_dict(saved)
    np.testing.assert_array_equal(env.step(choice)[0], known)


def test_a_wrapper_copies_the_same(make: Callable[..., Any]) -> None:
    """`ToNumpy` around wrappers that compute on the device, against those wrappers on what is copied first."""
    inside = ToNumpy(NormalizeObservation(RecordEpisodeStatistics(make(num_envs=64, output="torch"))))
    outside = NormalizeObservation(RecordEpisodeStatistics(make(num_envs=64, output="numpy")))
    for env in (inside, outside):
        env.reset(seed=1)
    for t in range(60):
        choice = np.arange(64) * t % 2
        found, known = inside.step(choice), outside.step(choice)
        np.testing.assert_allclose(found[0], known[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(found[4]["episode"]["r"], known[4]["episode"]["r"])
        assert type(found[4]["_episode"]) is np.ndarray


def test_copies_of_any_layout_with_one_wait() -> None:
    torch.manual_seed(0)
    base = torch.randn(33, 7, device="cuda")
    arrays = [base, base.T, base[::2], base > 0, base[:0], cupy.arange(5), base.cpu(), [1, 2], base]
    found = copies_on_host(arrays)
    for array, copy in zip(arrays, found, strict=True):
        known = np.asarray(
            array.cpu()
            if isinstance(array, torch.Tensor)
            else cupy.asnumpy(array)
            if isinstance(array, cupy.ndarray)
            else array
        )
        assert copy.dtype == known.dtype
        np.testing.assert_array_equal(copy, known)


def test_a_graph_cannot_be_captured(make: Callable[..., Any]) -> None:
    env = make(num_envs=64, output="numpy", buffers=2)
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
