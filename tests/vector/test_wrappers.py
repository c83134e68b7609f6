"""Wrappers equal references in plain Python for each row, in every framework and autoreset mode."""

from __future__ import annotations

import io
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from gpuvec import Key, SingleAgentEnv, VectorEnv, uniform
from gpuvec.errors import StateError
from gpuvec.vector.wrappers import (
    ClipAction,
    ClipReward,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    ToNumpy,
    Wrapper,
    WrapperError,
)
from gpuvec.vector.wrappers.base import Namespace, to_host

E = 5
MODES = list(AutoresetMode)
KINDS = ["cpu-torch", "cpu-numpy", "cpu-jax"] + [pytest.param(k, marks=pytest.mark.gpu) for k in ("cuda-torch", "cuda-cupy")]
TORCH = ["cpu-torch", pytest.param("cuda-torch", marks=pytest.mark.gpu)]
property_test = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class State(NamedTuple):
    steps: float
    mark: float


class Params(NamedTuple):
    offset: float = 50.0


def _reset(key: Key, p: Params) -> State:
    return State(0.0, p.offset + uniform(key, 0, -1.0, 1.0))


def _step(s: State, action: tuple[float, float], key: Key, p: Params) -> tuple[State, float, bool]:
    return State(s.steps + 1.0, s.mark), action[0], action[1] > 0.0


# The first action is the reward, and a positive second one ends the episode.
SCRIPTED = SingleAgentEnv(
    state=State,
    params=Params(),
    reset=_reset,
    step=_step,
    observe=lambda s, p: (s.steps, s.mark),
    spaces=lambda p: (Box(-np.inf, np.inf, (2,)), Box(np.array([-3.0, -1.0], np.float32), np.array([5.0, 1.0], np.float32))),
    max_episode_steps=6,
)


@cache
def make_scripted(kind: str, mode: AutoresetMode) -> Any:
    device, output = kind.split("-")
    if output == "jax":
        pytest.importorskip("jax")
    return VectorEnv(SCRIPTED, E, device=device, output=output, autoreset_mode=mode)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("cuda"):
        request.getfixturevalue("gpu")
    return str(request.param)


@pytest.fixture(params=TORCH)
def torch_kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("torch")
    if request.param.startswith("cuda"):
        request.getfixturevalue("gpu")
    return str(request.param)


def host(tree: Any) -> Any:
    """Copies all arrays of a tree to NumPy."""
    if isinstance(tree, dict):
        return {k: host(v) for k, v in tree.items()}
    return np.array(to_host(tree))


class ResultRecorder(Wrapper):
    """Records the results of the environment under a wrapper: all five parts of a step, (obs, mask) of a reset."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.results: list[tuple[Any, ...]] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        mask = np.ones(self.num_envs, bool) if not options or options.get("reset_mask") is None else host(options["reset_mask"])
        self.results.append((host(obs), mask))
        return obs, info

    def step(self, actions: Any, out: Any = None) -> Any:
        result = super().step(actions, out)
        self.results.append(tuple(map(host, result)))
        return result


def run_random(env: Any, rng: np.random.Generator, steps: int = 25) -> Any:
    """Yields the result of each reset and step.

    Episodes end at random. Masks reset some rows; in DISABLED mode they also reset rows whose episode is running.
    """
    obs, info = env.reset(seed=int(rng.integers(100)))
    ns = Namespace(obs)
    yield obs, info
    for _ in range(steps):
        actions = np.stack([rng.normal(1, 2, E), rng.random(E) - 0.8], axis=1).astype(np.float32)
        result = env.step(ns.asarray(actions))
        yield result
        if rng.random() < 0.3 or env.autoreset_mode is AutoresetMode.DISABLED:
            mask = (rng.random(E) < 0.2) | ((host(result[2]) | host(result[3])) & (rng.random(E) < 0.8))
            if mask.any():
                options = {"reset_mask": mask if rng.random() < 0.5 else ns.asarray(mask)}
                original_mask = options["reset_mask"]
                yield env.reset(options=options)
                assert options == {"reset_mask": original_mask}


class Row:
    """The running episode of one row under the rules of the autoreset modes."""

    def __init__(self, mode: AutoresetMode, decay: float = 1.0) -> None:
        self.mode, self.decay = mode, decay
        self.begin()

    def begin(self) -> None:
        self.total, self.length, self.over = 0.0, 0, False

    def step(self, reward: float, ends: bool) -> tuple[bool, bool, float, int]:
        """Returns whether the step counts, whether the episode ends, and the return and length of the episode so far."""
        if self.over:
            if self.mode is AutoresetMode.NEXT_STEP:
                self.begin()
            return False, False, 0.0, 0
        self.total, self.length = self.total * self.decay + reward, self.length + 1
        result = True, ends, self.total, self.length
        if ends:
            self.begin()
            self.over = self.mode is not AutoresetMode.SAME_STEP
        return result


def pooled_moments(samples: Any) -> tuple[Any, Any]:
    """Returns mean and variance of all samples, together with a weight of 1e-4 for mean 0 and variance 1."""
    x = np.asarray(samples, np.float64)
    weight = len(x) + 1e-4
    mean = x.sum(0) / weight
    return mean, (1e-4 * (1 + mean**2) + ((x - mean) ** 2).sum(0)) / weight


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 2**32 - 1), ring=st.sampled_from([1, 4, 12]))
@property_test
def test_episode_statistics_equal_those_of_each_row(kind: str, mode: AutoresetMode, seed: int, ring: int) -> None:
    recorder = ResultRecorder(make_scripted(kind, mode))
    env, rows, finished = RecordEpisodeStatistics(recorder, ring=ring), [Row(mode) for _ in range(E)], []
    assert env.statistics().episodes == 0
    for result in run_random(env, np.random.default_rng(seed)):
        if len(result) == 2:
            for row in np.flatnonzero(recorder.results[-1][1]):
                rows[row].begin()
            continue
        _, reward, terminated, truncated, _ = recorder.results[-1]
        ends = terminated | truncated
        row_results = [row.step(float(r), bool(e)) for row, r, e in zip(rows, reward, ends, strict=True)]
        finished += [(total, length) for _, ended, total, length in row_results if ended]
        info = result[4]
        assert ("final_obs" in info) == (mode is AutoresetMode.SAME_STEP)
        assert to_host(info["episode"]["r"]).dtype == np.float32
        assert to_host(info["episode"]["l"]).dtype == np.int32
        np.testing.assert_array_equal(host(info["_episode"]), [n[1] for n in row_results])
        np.testing.assert_allclose(host(info["episode"]["r"]), [n[2] * n[1] for n in row_results], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(host(info["episode"]["l"]), [n[3] * n[1] for n in row_results])
    summary = env.statistics()
    assert summary.episodes == len(finished) > 0
    returns, lengths = zip(*finished[-ring:], strict=True)
    np.testing.assert_allclose(summary.returns, returns, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(summary.lengths, lengths)
    assert summary.mean_return == pytest.approx(np.mean(returns), rel=1e-4, abs=1e-5)
    assert summary.mean_length == pytest.approx(np.mean(lengths))


def test_returns_and_lengths_are_exact_beyond_the_integers_of_float32(kind: str) -> None:
    env = RecordEpisodeStatistics(make_scripted(kind, AutoresetMode.SAME_STEP))
    ns = Namespace(env.reset(seed=0)[0])
    ones = ns.asarray(np.stack([np.ones(E), -np.ones(E)], axis=1).astype(np.float32))
    env.step(ones)
    state = env.state_dict(env=False)
    state |= {name: np.full(E, 2**24 - 1, host(state[name]).dtype) for name in ("running_return", "running_length")}
    env.load_state_dict(state)
    for _ in range(4):
        env.step(ones)
    episode = env.step(ones)[4]["episode"]
    assert host(episode["r"]).tolist() == host(episode["l"]).tolist() == [2**24 + 4] * E


def test_more_episodes_than_the_ring_size_may_end_in_one_step(kind: str) -> None:
    env = RecordEpisodeStatistics(make_scripted(kind, AutoresetMode.SAME_STEP), ring=3)
    ns = Namespace(env.reset(seed=0)[0])
    for step in range(4):
        env.step(ns.asarray(np.stack([10.0 * step + np.arange(E), np.ones(E)], axis=1).astype(np.float32)))
        np.testing.assert_array_equal(env.statistics().returns, 10 * step + np.array([2, 3, 4]))
    assert env.statistics().episodes == 4 * E


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 2**32 - 1))
@property_test
def test_every_observation_is_counted_once(kind: str, mode: AutoresetMode, seed: int) -> None:
    recorder = ResultRecorder(make_scripted(kind, mode))
    env, samples = NormalizeObservation(recorder), []
    for result in run_random(env, np.random.default_rng(seed)):
        obs, *rest = recorder.results[-1]
        samples.extend(obs[rest[0]] if len(rest) == 1 else obs)
        expected = [(result[0], obs, slice(None))]
        if len(rest) > 1 and mode is AutoresetMode.SAME_STEP:
            info = rest[3]
            samples.extend(info["final_obs"][info["_final_obs"]])
            expected.append((result[4]["final_obs"], info["final_obs"], info["_final_obs"]))
        mean, var = pooled_moments(samples)
        np.testing.assert_allclose(host(env.mean), mean, rtol=1e-5)
        np.testing.assert_allclose(host(env.var), var, rtol=1e-4)
        for actual, raw, rows in expected:
            assert to_host(actual).dtype == np.float32
            np.testing.assert_allclose(host(actual)[rows], ((raw - mean) / np.sqrt(var + 1e-8))[rows], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mode", MODES)
@given(seed=st.integers(0, 2**32 - 1), gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]))
@property_test
def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return(
    kind: str, mode: AutoresetMode, seed: int, gamma: float
) -> None:
    recorder = ResultRecorder(make_scripted(kind, mode))
    env, rows, samples = NormalizeReward(recorder, gamma=gamma), [Row(mode, gamma) for _ in range(E)], []
    for result in run_random(env, np.random.default_rng(seed)):
        if len(result) == 2:
            for row in np.flatnonzero(recorder.results[-1][1]):
                rows[row].begin()
            continue
        _, reward, terminated, truncated, _ = recorder.results[-1]
        row_results = [row.step(float(r), bool(e)) for row, r, e in zip(rows, reward, terminated | truncated, strict=True)]
        samples += [total for counts, _, total, _ in row_results if counts]
        var = pooled_moments(samples)[1] if samples else 1.0
        assert to_host(result[1]).dtype == np.float32
        np.testing.assert_allclose(host(env.var), var, rtol=1e-4)
        np.testing.assert_allclose(host(result[1]), reward / np.sqrt(var + 1e-8), rtol=1e-4, atol=1e-6)


def test_frozen_moments_stay_constant(kind: str) -> None:
    env = NormalizeReward(NormalizeObservation(make_scripted(kind, AutoresetMode.SAME_STEP)))
    for _ in run_random(env, np.random.default_rng(0)):
        pass
    env.update_running_mean = env.env.update_running_mean = False
    before = host(env.state_dict(env=False) | env.env.state_dict(env=False))
    raw = ResultRecorder(env.env.env)
    env.env.env = raw
    for result in run_random(env, np.random.default_rng(1)):
        scaled = (raw.results[-1][0] - before["mean"]) / np.sqrt(host(env.env.var) + 1e-8)
        np.testing.assert_allclose(host(result[0]), scaled, rtol=1e-4, atol=1e-4)
    after = host(env.state_dict(env=False) | env.env.state_dict(env=False))
    for name in ("mean", "var", "count"):
        np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize("kind", [*TORCH, "cpu-numpy"], indirect=True)
def test_variance_is_accurate_with_a_large_mean(kind: str) -> None:
    device, output = kind.split("-")
    recorder = ResultRecorder(VectorEnv(SCRIPTED, 4096, device=device, output=output, offset=10_000.0))
    env = NormalizeObservation(recorder)
    env.reset(seed=0)
    mean, var = pooled_moments(recorder.results[0][0])
    np.testing.assert_allclose(host(env.mean), mean, rtol=1e-6)
    np.testing.assert_allclose(host(env.var), var, rtol=1e-4)


def test_actions_and_rewards_are_clipped_and_rescaled(kind: str) -> None:
    inner = make_scripted(kind, AutoresetMode.SAME_STEP)
    ns = Namespace(inner.reset(seed=0)[0])
    far = ns.asarray(np.array([[-9, -9], [9, -9], [0, -9], [4, -0.5], [5, 0]], np.float32))
    clipped = ClipAction(inner)
    assert clipped.single_action_space == Box(-np.inf, np.inf, (2,))
    assert clipped.action_space == Box(-np.inf, np.inf, (E, 2))
    np.testing.assert_array_equal(host(clipped.step(far)[1]), [-3, 5, 0, 4, 5])

    rescaled = RescaleAction(inner, -1, np.array([1, 2]))
    assert rescaled.single_action_space == Box(np.float32([-1, -1]), np.float32([1, 2]))
    ends = ns.asarray(np.array([[-1, -1], [1, -1], [0, 2], [0.5, -0.1], [0, 0.6]], np.float32))
    _, reward, terminated, *_ = rescaled.step(ends)
    np.testing.assert_allclose(host(reward), [-3, 5, 1, 3, 1])
    np.testing.assert_array_equal(host(terminated), [False, False, True, False, True])  # second: -1 + 2/3 (a + 1) > 0

    for low, high in ((-2, 3), (None, 3), (-2, None)):
        np.testing.assert_array_equal(host(ClipReward(inner, low, high).step(far)[1]), np.clip([-9, 9, 0, 4, 5], low, high))


def wrap_all(env: Any) -> NormalizeReward:
    return NormalizeReward(RecordEpisodeStatistics(NormalizeObservation(ClipAction(env)), ring=4))


def assert_equal_trees(one: Any, two: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for name in one:
            assert_equal_trees(one[name], two[name])
    elif isinstance(one, list):
        for a, b in zip(one, two, strict=True):
            assert_equal_trees(a, b)
    else:
        np.testing.assert_array_equal(host(one), host(two))


def run_steps(env: Any, seed: int, **options: Any) -> list[Any]:
    """Runs five steps and returns copies of their results."""
    actions = np.random.default_rng(seed).normal(size=(5, E, 2)).astype(np.float32)
    actions[:, 0, 1] = -1  # the episode of the first row continues
    device_actions = pytest.importorskip("torch").as_tensor(actions).to(env.device)
    return [host(dict(enumerate(env.step(action, **options)))) for action in device_actions]


@pytest.mark.parametrize("mode", MODES)
def test_run_continues_from_its_checkpoint(torch_kind: str, mode: AutoresetMode) -> None:
    torch = pytest.importorskip("torch")
    inner, file = make_scripted(torch_kind, mode), io.BytesIO()
    env = wrap_all(inner)
    for _ in run_random(env, np.random.default_rng(3)):
        pass
    torch.save(env.state_dict(), file)
    expected, summary = run_steps(env, 4), env.env.statistics()
    inner.reset(seed=9)
    file.seek(0)
    other = wrap_all(inner)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_equal_trees(run_steps(other, 4), expected)
    assert_equal_trees(other.env.statistics()._asdict(), summary._asdict())


def test_state_of_another_wrapper_is_refused() -> None:
    env = RecordEpisodeStatistics(make_scripted("cpu-numpy", AutoresetMode.SAME_STEP), ring=4)
    with pytest.raises(StateError, match=r"ring_return.*\(3,\).*\(4,\)"):
        env.load_state_dict(RecordEpisodeStatistics(env.env, ring=3).state_dict(env=False))
    with pytest.raises(StateError, match="mean"):
        env.load_state_dict(NormalizeObservation(env.env).state_dict(env=False))
    sync = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(WrapperError, match=r"state_dict\(env=False\)"):
        NormalizeObservation(sync).state_dict()


@pytest.mark.parametrize("mode", MODES)
def test_out_receives_the_outputs_of_wrappers(torch_kind: str, mode: AutoresetMode) -> None:
    torch = pytest.importorskip("torch")
    inner = make_scripted(torch_kind, mode)
    plain, env = (ClipReward(wrap_all(inner), -0.5, 0.5) for _ in range(2))
    plain.reset(seed=1)
    expected = run_steps(plain, 0)
    out = {"obs": torch.empty(E, 2), "reward": torch.empty(E)}
    out |= {name: torch.empty(E, dtype=torch.bool) for name in ("terminated", "truncated")}
    if mode is AutoresetMode.SAME_STEP:
        out["final_obs"] = torch.full((E, 2), 7.0)
    out = {name: array.to(inner.device) for name, array in out.items()}
    env.reset(seed=1)
    actual = run_steps(env, 0, out=out)
    if mode is AutoresetMode.SAME_STEP:
        if inner.device == "cpu":  # a GPU may write rows next to an ended one
            assert (out["final_obs"][0] == 7).all()  # no episode ended in this row, so the row is not normalised
        for step in (*actual, *expected):
            step[4]["final_obs"] = step[4]["final_obs"][step[4]["_final_obs"]]
    assert_equal_trees(actual, expected)
    *arrays, info = env.step(torch.zeros(E, 2, device=inner.device), out=out)
    assert all(array is out[name] for name, array in zip(("obs", "reward", "terminated", "truncated"), arrays, strict=True))
    assert mode is not AutoresetMode.SAME_STEP or info["final_obs"] is out["final_obs"]


def test_state_keeps_its_memory_addresses(torch_kind: str) -> None:
    env = wrap_all(make_scripted(torch_kind, AutoresetMode.DISABLED))
    owners = [env, env.env, env.env.env, env.env.env.env]
    results = run_random(env, np.random.default_rng(0))
    next(results)
    next(results)

    def data_pointers() -> list[int]:
        return [array.data_ptr() for owner in owners for array in vars(owner)[_buffers(owner)]._arrays.values()]

    before = data_pointers()
    for _ in results:
        pass
    env.load_state_dict(env.state_dict())
    assert data_pointers() == before


def _buffers(wrapper: Any) -> str:
    return "_buffers" if "_buffers" in vars(wrapper) else "_constants"


def test_returned_arrays_are_not_overwritten(kind: str) -> None:
    env = wrap_all(make_scripted(kind, AutoresetMode.SAME_STEP))
    copies = [(result, host(dict(enumerate(result)))) for result in run_random(env, np.random.default_rng(5))]
    for result, copy in copies:
        assert_equal_trees(dict(enumerate(result)), copy)


def test_wrappers_do_not_synchronize() -> None:
    """Fake tensors have no values, so reading a value on the host raises an error."""
    torch = pytest.importorskip("torch")
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")

    def fake(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.empty(E, *shape, dtype=dtype)

    class Fake(gym.vector.VectorEnv):
        num_envs = E
        single_observation_space, single_action_space = SCRIPTED.spaces(SCRIPTED.params)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return fake(2), {}

        def step(self, actions: Any) -> Any:
            info = (
                {"final_obs": fake(2), "_final_obs": fake(dtype=torch.bool)}
                if "SAME" in self.metadata["autoreset_mode"].name
                else {}
            )
            return fake(2), fake(), fake(dtype=torch.bool), fake(dtype=torch.bool), info

    for mode in MODES:
        with fake_tensor.FakeTensorMode():
            inner = Fake()
            inner.metadata = {"autoreset_mode": mode}
            env = ClipReward(wrap_all(RescaleAction(inner)), -1, 1)
            env.reset()
            for _ in range(3):
                *_, info = env.step(fake(2))
                env.reset(options={"reset_mask": fake(dtype=torch.bool)})
            with pytest.raises(fake_tensor.DataDependentOutputException):
                bool(info["_episode"].any())


def test_to_numpy_converts_all_outputs(torch_kind: str) -> None:
    class Nested(Wrapper):
        def step(self, actions: Any, out: Any = None) -> Any:
            assert type(actions).__module__ == "torch"
            *arrays, info = super().step(actions, out)
            return *arrays, info | {
                "outer": {"inner": {"x": arrays[1]}, "_inner": arrays[2]},
                "note": "text",
                "pair": (arrays[0], 1),
            }

    for mode in MODES:
        inner = make_scripted(torch_kind, mode)
        env = ToNumpy(Nested(RecordEpisodeStatistics(inner)))
        obs, _ = env.reset(seed=2)
        assert type(obs) is np.ndarray
        assert env.output == "numpy"
        actions = np.stack([np.arange(E), [1, -1, 1, -1, -1]], axis=1).astype(np.float32)
        obs, reward, terminated, truncated, info = env.step(actions)
        assert {type(x) for x in (obs, reward, terminated, truncated)} == {np.ndarray}
        np.testing.assert_array_equal(reward, np.arange(E))
        np.testing.assert_array_equal(terminated, [True, False, True, False, False])
        np.testing.assert_array_equal(info["outer"]["inner"]["x"], reward)
        np.testing.assert_array_equal(info["outer"]["_inner"], terminated)
        np.testing.assert_array_equal(info["pair"][0], obs)
        assert (info["note"], info["pair"][1]) == ("text", 1)
        np.testing.assert_array_equal(info["episode"]["r"], [0, 0, 2, 0, 0])
        assert type(info["_episode"]) is np.ndarray
        if mode is AutoresetMode.SAME_STEP:
            np.testing.assert_array_equal(info["final_obs"][terminated, 0], [1, 1])
        assert {type(x) for x in env.get_state().values()} == {np.ndarray}
        out = {"obs": np.empty((E, 2), np.float32), "reward": np.empty(E, np.float32)}
        env.reset(seed=2)
        second_result = env.step(actions, out=out)
        assert second_result[0] is out["obs"]
        np.testing.assert_array_equal(out["obs"], obs)
        np.testing.assert_array_equal(out["reward"], reward)


@pytest.mark.skipif(Version(gym.__version__) < Version("1.4"), reason="earlier releases miscount SAME_STEP")
def test_gymnasium_wrappers_work_on_to_numpy(torch_kind: str) -> None:
    env = gym.wrappers.vector.RecordEpisodeStatistics(ToNumpy(make_scripted(torch_kind, AutoresetMode.SAME_STEP)))
    ours = RecordEpisodeStatistics(ToNumpy(make_scripted(torch_kind, AutoresetMode.SAME_STEP)))
    rng = np.random.default_rng(0)
    actions = np.stack([rng.normal(size=(30, E)), rng.random((30, E)) - 0.8], axis=2).astype(np.float32)
    for wrapped in (env, ours):
        wrapped.reset(seed=0)
        for action in actions:
            wrapped.step(action)
    summary = ours.statistics()
    assert len(env.length_queue) == summary.episodes > 10
    np.testing.assert_array_equal(env.length_queue, summary.lengths)
    np.testing.assert_allclose(env.return_queue, summary.returns, rtol=1e-5, atol=1e-6)


def test_attributes_of_the_environment_are_available_through_wrappers() -> None:
    inner = make_scripted("cpu-numpy", AutoresetMode.NEXT_STEP)
    env = ClipReward(wrap_all(inner), -1, 1)
    env.reset(seed=0)
    assert (env.device, env.output, env.params, env.autoreset_mode) == ("cpu", "numpy", inner.params, AutoresetMode.NEXT_STEP)
    assert env.call("offset") == env.get_attr("offset") == (50.0,) * E
    assert env.get_state().keys() == {"steps", "mark"}
    assert env.unwrapped is inner
    with pytest.raises(AttributeError, match="unknown_attribute"):
        _ = env.unknown_attribute


def test_errors_name_invalid_arguments() -> None:
    env = make_scripted("cpu-numpy", AutoresetMode.NEXT_STEP)
    for make, message in (
        (lambda: RecordEpisodeStatistics(env, ring=0), "ring.*0"),
        (lambda: NormalizeObservation(env, epsilon=0), "epsilon.*0"),
        (lambda: NormalizeReward(env, epsilon=-1), "epsilon.*-1"),
        (lambda: NormalizeReward(env, gamma=1.5), r"\[0, 1\].*1.5"),
        (lambda: ClipReward(env), "both None"),
        (lambda: ClipReward(env, 2, 1), r"\(2\).*\(1\)"),
        (lambda: RescaleAction(env, 1, 1), r"\(1\).*\(1\)"),
        (lambda: RescaleAction(ClipAction(env)), "finite"),
    ):
        with pytest.raises(gym.error.InvalidBound, match=message):
            make()
    discrete = gym.make_vec("gpuvec/CartPole-v1", num_envs=2, output="numpy")
    for wrapper in (ClipAction, RescaleAction):
        with pytest.raises(WrapperError, match=r"Box.*Discrete\(2\)"):
            wrapper(discrete)
    twice = RecordEpisodeStatistics(RecordEpisodeStatistics(env))
    twice.reset(seed=0)
    with pytest.raises(WrapperError, match=r"episode.*stats_key"):
        twice.step(np.zeros((E, 2), np.float32))
    dlpack = NormalizeObservation(VectorEnv(SCRIPTED, 2, device="cpu", output="dlpack"))
    with pytest.raises(WrapperError, match=r"DLPackArray.*output='torch'"):
        dlpack.reset(seed=0)


def test_captured_step_equals_the_eager_step_without_synchronization(gpu: str) -> None:
    torch = pytest.importorskip("torch")
    for mode in MODES:
        env, eager = (wrap_all(VectorEnv(SCRIPTED, 1000, device=gpu, autoreset_mode=mode, buffers=1)) for _ in range(2))
        rng = np.random.default_rng(0)
        actions = torch.as_tensor(
            np.stack([rng.normal(size=(20, 1000)), rng.random((20, 1000)) - 0.8], 2).astype(np.float32)
        ).cuda()
        masks = torch.as_tensor(rng.random((20, 1000)) < 0.1).cuda()
        action = actions[0].clone()
        for wrapped in (env, eager):
            wrapped.reset(seed=0)
            wrapped.step(action)  # compiles the kernels and moves the buffers to the device
        graph = torch.cuda.CUDAGraph()
        saved = env.state_dict()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other libraries in the process have threads
            captured = env.step(action)
        env.load_state_dict(saved)
        torch.cuda.synchronize()
        for k in range(20):
            action.copy_(actions[k])
            torch.cuda.set_sync_debug_mode("error")
            try:
                graph.replay()
                result = eager.step(actions[k])
                if k % 3 == 2:
                    env.reset(options={"reset_mask": masks[k]})
                    eager.reset(options={"reset_mask": masks[k]})
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert_equal_trees(dict(enumerate(captured)), dict(enumerate(result)))
        assert_equal_trees(env.state_dict()["env"], eager.state_dict()["env"])
        assert env.env.statistics().episodes == eager.env.statistics().episodes > 0
