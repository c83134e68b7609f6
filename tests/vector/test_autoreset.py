"""The three autoreset modes equal those of Gymnasium's SyncVectorEnv for environments that exist in both libraries."""

from __future__ import annotations

from functools import cache, partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.support.arrays import host, on_device, reset, step
from tests.support.counter_env import PlainCounter, make, shared

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
MODES = list(AutoresetMode)
MAXIMA = (2.0, 3.0, 5.0, 7.0)
FINAL = {"final_obs", "_final_obs", "final_info", "_final_info"}


def make_counter(device, mode, limit=None):
    """Returns four counters, each with its own maximum."""
    return shared("tests/Counter-v0", len(MAXIMA), device=device, autoreset_mode=mode, max_episode_steps=limit, maximum=MAXIMA)


def make_sync_counter(mode, limit=None):
    """Returns the same four counters as a SyncVectorEnv."""

    def make_one(maximum):
        env = PlainCounter(maximum)
        return env if limit is None else gym.wrappers.TimeLimit(env, limit)

    return SyncVectorEnv([lambda m=m: make_one(m) for m in MAXIMA], autoreset_mode=mode)


def assert_equal_steps(ours, theirs, mode):
    """Asserts that a step of gpuvec equals a step of SyncVectorEnv."""
    for actual, expected in zip(ours[:4], theirs[:4], strict=True):
        np.testing.assert_array_equal(actual, expected)
    if mode is not SAME_STEP:
        assert ours[4] == theirs[4] == {}
        return
    actual, expected = ours[4], theirs[4]
    ended = theirs[2] | theirs[3]
    assert actual.keys() == FINAL  # in every step
    assert expected.keys() == (FINAL if ended.any() else set())
    assert actual["final_info"] == expected.get("final_info", {}) == {}
    for mask in ("_final_obs", "_final_info"):
        np.testing.assert_array_equal(actual[mask], expected.get(mask, ended))
    for row in np.flatnonzero(ended):
        np.testing.assert_array_equal(actual["final_obs"][row], expected["final_obs"][row])


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("mode", MODES)
def test_each_step_equals_sync_vector_env(backend, mode, limit):
    """With a limit of 5, row 2 is terminated and truncated at once, and row 3 truncated only."""
    ours, theirs, rng = make_counter(backend, mode, limit), make_sync_counter(mode, limit), np.random.default_rng(0)
    np.testing.assert_array_equal(reset(ours, seed=0), theirs.reset(seed=0)[0])
    end_kinds = set()
    for _ in range(25):
        actions = rng.integers(1, 10, len(MAXIMA))
        actual, expected = step(ours, actions), theirs.step(actions)
        assert_equal_steps(actual, expected, mode)
        end_kinds |= set(zip(actual[2].tolist(), actual[3].tolist(), strict=True))
        ended = actual[2] | actual[3]
        if mode is DISABLED and ended.any():
            np.testing.assert_array_equal(
                reset(ours, options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended.copy()})[0]
            )
    assert end_kinds == {(False, False), (True, False)} | (set() if limit is None else {(True, True), (False, True)})


@cache
def make_scalar_envs(name, limit):
    """Returns two scalar environments of gpuvec that always start in the same state."""
    start = {"low": 0.01, "high": 0.01} if name == "CartPole-v1" else {"x_init": 0.0, "y_init": 0.0}
    return tuple(gym.make(f"gpuvec/{name}", max_episode_steps=limit, **start) for _ in range(2))


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    ("name", "limit", "mode"),
    [("CartPole-v1", 18, NEXT_STEP), ("CartPole-v1", 18, SAME_STEP), ("Pendulum-v1", 4, DISABLED)],
)
def test_bundled_envs_equal_sync_vector_env(device, name, limit, mode):
    """The SyncVectorEnv contains scalar environments of gpuvec; on a GPU the last bits differ."""
    start = {"low": 0.01, "high": 0.01} if name == "CartPole-v1" else {"x_init": 0.0, "y_init": 0.0}
    ours = make(f"gpuvec/{name}", 2, device=device, autoreset_mode=mode, max_episode_steps=limit, **start)
    theirs = SyncVectorEnv([lambda env=env: env for env in make_scalar_envs(name, limit)], autoreset_mode=mode)
    tolerance = 0 if device == "cpu" else 1e-5
    np.testing.assert_allclose(reset(ours, seed=1), theirs.reset(seed=1)[0], rtol=0, atol=tolerance)
    theirs.action_space.seed(3)
    flags = np.zeros(2, int)
    for _ in range(45):
        actions = theirs.action_space.sample()
        actual, expected = step(ours, actions), theirs.step(actions)
        np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=tolerance)
        np.testing.assert_allclose(actual[1], expected[1], rtol=1e-6, atol=tolerance)
        np.testing.assert_array_equal(actual[2], expected[2])
        np.testing.assert_array_equal(actual[3], expected[3])
        ended = actual[2] | actual[3]
        flags += [actual[2].any(), actual[3].any()]
        if mode is SAME_STEP:
            for row in np.flatnonzero(ended):
                np.testing.assert_allclose(actual[4]["final_obs"][row], expected[4]["final_obs"][row], rtol=0, atol=tolerance)
        if mode is DISABLED and ended.any():
            reset(ours, options={"reset_mask": ended})
            theirs.reset(options={"reset_mask": ended})
    assert flags[1] > 0
    assert (flags[0] > 0) == (name == "CartPole-v1")
    ours.close()


def test_step_that_resets_ignores_the_action(device):
    env = shared("tests/Mixed-v0", 5, device=device, autoreset_mode=NEXT_STEP)
    runs = []
    for ignored in ([0, 0], [2, 3]):
        over, run = np.zeros(5, bool), [reset(env, seed=4)]
        for _ in range(20):
            obs, reward, terminated, truncated, _ = step(env, np.where(over[:, None], ignored, [1, 2]))
            assert (reward[over] == 0.0).all()
            assert not (terminated | truncated)[over].any()
            over = terminated | truncated
            run += [obs, reward, over]
        runs.append(run)
    assert sum(over.sum() for over in runs[0][3::3]) > 5
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_modes_are_equal_until_the_first_end_and_final_obs_is_terminal(device):
    runs = {}
    for mode in MODES:
        env = shared("tests/Mixed-v0", 5, device=device, autoreset_mode=mode)
        start = reset(env, seed=9)
        runs[mode] = [step(env, np.tile([[1, 3]], (5, 1))) for _ in range(6)]
        np.testing.assert_array_equal(start, reset(env, seed=9))
    # A GPU may round differently in the kernels of the three modes.
    assert_close = partial(np.testing.assert_allclose, rtol=0, atol=0 if device == "cpu" else 1e-6)
    running = np.ones(5, bool)
    for t in range(6):
        following, same, disabled = (runs[mode][t] for mode in (NEXT_STEP, SAME_STEP, DISABLED))
        ended = disabled[2] | disabled[3]
        for results in (following, same):
            for k in (1, 2, 3):
                assert_close(results[k][running], disabled[k][running])
        assert_close(following[0][running], disabled[0][running])
        last = running & ended
        assert_close(same[4]["final_obs"][last], disabled[0][last])
        assert_close(same[0][running & ~ended], disabled[0][running & ~ended])
        assert (np.abs(same[0][last, 0]) <= 1.0).all()  # the level of an initial state
        running &= ~ended
    assert not running.any()  # the limit of 6 ends them all


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
@pytest.mark.parametrize("masked", [False, True])
def test_reset_cancels_a_pending_reset(backend, mode, masked):
    env = make_counter(backend, mode)
    reset(env, seed=0)
    for _ in range(2):
        terminated = step(env, [1, 1, 1, 1])[2]
    np.testing.assert_array_equal(terminated, [True, False, False, False])
    obs = reset(env, options={"reset_mask": terminated} if masked else None)
    np.testing.assert_array_equal(obs[:, 0], [0, 2, 2, 2] if masked else [0, 0, 0, 0])
    obs, reward, *_ = step(env, [6, 7, 8, 9])
    np.testing.assert_array_equal(obs[:, 0], [1, 3, 3, 3] if masked else [1, 1, 1, 1])
    np.testing.assert_array_equal(reward, [6, 7, 8, 9])


@pytest.mark.parametrize("limit", [None, -1])
def test_no_truncation_without_a_limit(device, limit):
    env = shared("tests/Counter-v0", 2, device=device, max_episode_steps=limit, maximum=1e9)
    assert env.max_episode_steps is None
    reset(env, seed=0)
    for _ in range(600):
        _, _, terminated, truncated, _ = env.step(on_device(env, [1, 1]))
        assert not host(terminated).any()
        assert not host(truncated).any()


def test_limit_of_one_ends_every_episode_in_its_first_step(device):
    env = shared("tests/Counter-v0", 2, device=device, max_episode_steps=1, autoreset_mode=SAME_STEP)
    reset(env, seed=0)
    for _ in range(3):
        obs, reward, terminated, truncated, info = step(env, [3, 4])
        np.testing.assert_array_equal(obs, [[0], [0]])
        np.testing.assert_array_equal(info["final_obs"], [[1], [1]])
        np.testing.assert_array_equal(reward, [3, 4])
        assert truncated.all()
        assert not terminated.any()


def test_argument_overrides_the_limit_of_the_spec():
    assert make("tests/Mixed-v0", 1).max_episode_steps == 6
    assert make("tests/Mixed-v0", 1, max_episode_steps=3).max_episode_steps == 3
    assert make("tests/Mixed-v0", 1, max_episode_steps=None).max_episode_steps is None


def test_limit_counts_the_steps_since_a_masked_reset(device):
    env = shared("tests/Counter-v0", 4, device=device, autoreset_mode=NEXT_STEP, max_episode_steps=5, maximum=1e9)
    reset(env, seed=0)
    for _ in range(3):
        step(env, [1, 1, 1, 1])
    reset(env, options={"reset_mask": np.array([True, False, False, True])})
    truncated = [step(env, [1, 1, 1, 1])[3].tolist() for _ in range(5)]
    assert truncated == [[False] * 4, [False, True, True, False], [False] * 4, [False] * 4, [True, False, False, True]]


def test_ended_env_keeps_its_state_without_autoreset(device):
    env = make_counter(device, DISABLED)
    reset(env, seed=0)
    for _ in range(2):
        step(env, [1, 1, 1, 1])
    for _ in range(2):
        obs, reward, terminated, truncated, _ = step(env, [5, 1, 1, 1])
        assert (obs[0, 0], reward[0], terminated[0], truncated[0]) == (2.0, 0.0, False, False)
