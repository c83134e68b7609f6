"""Wrappers of gpuvec around SyncVectorEnv equal the wrappers of Gymnasium where those are correct."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as theirs
from packaging.version import Version

from gpuvec.vector import wrappers as ours

E = 3
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def make_sync(name: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP, n: int = E) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gym.make(name)] * n, autoreset_mode=mode)


def run_random(env: Any, steps: int) -> Any:
    env.reset(seed=5)
    env.action_space.seed(5)
    for _ in range(steps):
        yield env.step(env.action_space.sample())


@pytest.mark.skipif(Version(gym.__version__) < Version("1.4"), reason="earlier releases miscount SAME_STEP")
@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics(mode: AutoresetMode) -> None:
    env = ours.RecordEpisodeStatistics(make_sync("CartPole-v1", mode), ring=7)
    gym_env = theirs.RecordEpisodeStatistics(make_sync("CartPole-v1", mode), buffer_length=7)
    for *_, actual, (*_, expected) in ((*a, b) for a, b in zip(run_random(env, 250), run_random(gym_env, 250), strict=True)):
        assert actual["_episode"].any() == ("episode" in expected)
        for name in "rl":
            np.testing.assert_array_equal(actual["episode"][name], expected.get("episode", {}).get(name, np.zeros(E)))
    summary = env.statistics()
    assert summary.episodes == gym_env.episode_count > 7
    np.testing.assert_array_equal(summary.returns, gym_env.return_queue)
    np.testing.assert_array_equal(summary.lengths, gym_env.length_queue)


def test_normalized_observations() -> None:
    env, gym_env = (wrap(make_sync("CartPole-v1")) for wrap in (ours.NormalizeObservation, theirs.NormalizeObservation))
    # The comparison is not with Gymnasium, since version 1.1 keeps the bounds of the wrapped environment.
    assert env.observation_space == gym.spaces.Box(-np.inf, np.inf, (E, 4), np.float32)
    for actual, expected in zip(run_random(env, 100), run_random(gym_env, 100), strict=True):
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-3, atol=1e-4)


def test_normalized_final_observations() -> None:
    env = ours.NormalizeObservation(make_sync("CartPole-v1", AutoresetMode.SAME_STEP))
    ended = 0
    for obs, *_, info in run_random(env, 100):
        if "final_obs" in info:
            mask = info["_final_obs"]
            assert info["final_obs"].shape == obs.shape
            assert (np.abs(info["final_obs"][mask]) > 0.1).any(axis=1).all()
            ended += mask.sum()
    assert ended > 0
    assert env.state_dict(env=False)["count"] == pytest.approx(1e-4 + 101 * E + ended)


def test_normalized_rewards_before_an_episode_ends() -> None:
    env, gym_env = (wrap(make_sync("Pendulum-v1"), gamma=0.9) for wrap in (ours.NormalizeReward, theirs.NormalizeReward))
    for actual, expected in zip(run_random(env, 150), run_random(gym_env, 150), strict=True):
        np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("ClipAction", ()), ("RescaleAction", (np.float32([-0.5]), np.float32([1.5]))), ("ClipReward", (-3.0, -1.0))],
)
def test_clipping_and_rescaling(name: str, arguments: tuple[Any, ...]) -> None:
    env, gym_env = (getattr(module, name)(make_sync("Pendulum-v1"), *arguments) for module in (ours, theirs))
    assert env.action_space == gym_env.action_space
    for actual, expected in zip(run_random(env, 30), run_random(gym_env, 30), strict=True):
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(actual[1], expected[1], rtol=1e-5)


def test_reset_does_not_change_the_options() -> None:
    env = ours.RecordEpisodeStatistics(ours.NormalizeReward(make_sync("CartPole-v1", AutoresetMode.DISABLED)))
    for _ in run_random(env, 5):
        pass
    options = {"reset_mask": np.array([True, False, False])}
    env.reset(options=options)
    assert list(options) == ["reset_mask"]
    np.testing.assert_array_equal(env.state_dict(env=False)["running_length"], [0, 5, 5])


def test_dict_observations_pass_through() -> None:
    class Dictionary(gym.ObservationWrapper):
        observation_space = gym.spaces.Dict(x=gym.spaces.Box(-np.inf, np.inf, (4,)))

        def observation(self, observation: Any) -> Any:
            return {"x": observation}

    env = ours.ToNumpy(ours.RecordEpisodeStatistics(SyncVectorEnv([lambda: Dictionary(gym.make("CartPole-v1"))] * 2)))
    for obs, *_, info in run_random(env, 3):
        assert obs["x"].shape == (2, 4)
        assert info["episode"]["l"].shape == (2,)


def test_unknown_autoreset_mode_is_refused() -> None:
    env = make_sync("CartPole-v1", n=1)
    env.metadata = {}
    with pytest.raises(ours.WrapperError, match="autoreset_mode"):
        ours.RecordEpisodeStatistics(env)


def test_episode_of_a_row_without_reset_ends_once() -> None:
    class Ended(gym.vector.VectorEnv):
        """Reports the end of an episode in every step, as an environment without a reset may do."""

        num_envs, metadata = E, {"autoreset_mode": AutoresetMode.DISABLED}

        def step(self, actions: Any) -> Any:
            return np.zeros((E, 1)), np.ones(E), np.array([True, False, True]), np.zeros(E, bool), {}

    env = ours.RecordEpisodeStatistics(Ended())
    masks = [env.step(None)[4]["_episode"].tolist() for _ in range(3)]
    assert masks == [[True, False, True], [False] * 3, [False] * 3]
    assert env.statistics()[:3] == (2, 1.0, 1.0)
