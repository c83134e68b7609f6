"""`gymnasium.make` with an id of gpuvec makes one environment on the CPU that passes the checks of Gymnasium."""

from __future__ import annotations

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from tests.support.bundled_envs import IN_GYMNASIUM, SINGLE_AGENT
from tests.support.counter_env import make

# The checker gives the same advice about environments of Gymnasium.
ADVICE = [
    "observation space minimum value is -infinity",
    "observation space maximum value is infinity",
    "recommend using a symmetric and normalized space",  # Pendulum's torque is -2 to 2 N m
]


@pytest.fixture(scope="module")
def env():
    """CartPole, compiled once."""
    env = gym.make("gpuvec/CartPole-v1", render_mode="rgb_array").unwrapped
    yield env
    env.close()


# Their states are scalars and their spaces are as those of CartPole or Pendulum.
SIMILAR = ("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SIMILAR else ()) for name in SINGLE_AGENT]
)
def test_checker_of_gymnasium_passes(name):
    """The check of rendering makes two more environments, so the test checks the rendering of one environment only."""
    env = gym.make(f"gpuvec/{name}", render_mode="rgb_array")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env.unwrapped, skip_render_check=name != "CartPole-v1")
    messages = [str(w.message) for w in caught]
    assert [message for message in messages if not any(advice in message for advice in ADVICE)] == []
    env.close()


@pytest.mark.parametrize("name", IN_GYMNASIUM)
def test_episode_has_the_length_of_gymnasium(name):
    """`make` adds the step limit, and the environment itself does not truncate episodes."""
    env = gym.make(f"gpuvec/{name}")
    limit = gym.spec(name).max_episode_steps
    env.reset(seed=0)
    action = {"CartPole-v1": 0, "Acrobot-v1": 1, "MountainCar-v0": 1}.get(name, np.zeros(1, np.float32))
    steps, ended = 0, False
    while not ended:
        *_, terminated, truncated, info = env.step(action)
        steps, ended = steps + 1, terminated or truncated
    assert info == {}
    assert (steps == limit, truncated) == ((False, False) if name == "CartPole-v1" else (True, True))
    if truncated:
        *_, truncated, _ = env.unwrapped.step(action)
        assert not truncated
    env.close()


class TestOneEnv:
    def test_types_of_reset_and_step(self, env):
        obs, info = env.reset(seed=1)
        assert (obs.dtype, obs.shape, info) == (np.float32, (4,), {})
        obs, reward, terminated, truncated, info = env.step(np.int64(1))
        assert (obs.dtype, obs.shape, info) == (np.float32, (4,), {})
        assert [type(x) for x in (reward, terminated, truncated)] == [float, bool, bool]

    def test_same_seed_repeats_the_episodes(self, env):
        runs = []
        for _ in range(2):
            run = [env.reset(seed=3)[0]]
            for t in range(40):
                obs, _, terminated, *_ = env.step(t % 2)
                run.append(env.reset()[0] if terminated else obs)
            runs.append(run)
        np.testing.assert_array_equal(*runs)
        assert (env.reset(seed=4)[0] != runs[0][0]).any()

    def test_resets_without_a_seed_differ(self, env):
        env.reset(seed=3)
        starts = [env.reset()[0].tobytes() for _ in range(50)]
        assert len(set(starts)) == 50

    def test_reset_options(self, env):
        np.testing.assert_array_equal(env.reset(options={"low": 0.1, "high": 0.1})[0], np.full(4, np.float32(0.1)))
        with pytest.raises(ValueError, match="low and high"):
            env.reset(options={"low": 1.0})

    @pytest.mark.parametrize("action", [2, -1, 0.5, "1", None, [0], np.array([0, 1]), np.nan])
    def test_actions_outside_the_space_raise(self, env, action):
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"is not allowed; the action space is Discrete\(2\)"):
            env.step(action)

    def test_step_continues_from_set_state(self, env):
        env.reset(seed=0)
        env.set_state({"x": 1.5, "theta": 0.1})
        state = env.get_state()
        assert state["x"] == 1.5
        assert state["theta"] == np.float32(0.1)
        obs = env.step(1)[0]
        assert abs(obs[0] - 1.5) < 0.01

    def test_render_returns_a_frame(self, env):
        env.reset(seed=0)
        frame = env.render()
        assert (frame.shape, frame.dtype) == ((400, 600, 3), np.uint8)

    def test_pickled_copy_continues_like_the_original(self, env):
        env.reset(seed=0)
        env.step(1)
        copy = pickle.loads(pickle.dumps(env))  # noqa: S301  # its own bytes
        for action in (0, 1, 1):
            np.testing.assert_array_equal(env.step(action)[0], copy.step(action)[0])
        np.testing.assert_array_equal(env.reset()[0], copy.reset()[0])


@pytest.mark.parametrize("action", [np.array([np.nan]), np.array([np.inf]), np.zeros(2), np.zeros((1, 1)), 0.0, "x", ["x"]])
def test_invalid_continuous_actions_raise(action):
    env = gym.make("gpuvec/Pendulum-v1").unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"is not allowed; expected \(1,\) finite numbers"):
        env.step(action)


def test_continuous_actions_beyond_the_bounds_are_clipped():
    env = gym.make("gpuvec/Pendulum-v1").unwrapped
    runs = []
    for torque in (2.0, 50.0):
        env.reset(seed=0)
        runs.append(env.step(np.array([torque])))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_every_type_of_field_and_action():
    """The state has ints and bools, and the actions are MultiDiscrete."""
    env = gym.make("tests/Mixed-v0").unwrapped
    env.reset(seed=0)
    env.set_state({"score": 5, "lit": True})
    env.step(np.array([1, 2]))
    assert env.get_state()["score"] == 7
    with pytest.raises(ValueError, match=r"the action space is MultiDiscrete\(\[3 4\]\)"):
        env.step(np.array([3, 0]))


def test_params_are_used_and_unknown_params_raise():
    env = gym.make("gpuvec/CartPole-v1", low=0.04, high=0.04)
    np.testing.assert_array_equal(env.reset(seed=0)[0], np.full(4, np.float32(0.04)))
    with pytest.raises(TypeError, match="'gravty'; did you mean 'gravity'"):
        gym.make("gpuvec/CartPole-v1", gravty=1.0)


def test_arguments_of_make_vec_raise():
    with pytest.raises(TypeError, match=r"'device' is an argument of gymnasium.make_vec.* its parameters: "):
        gym.make("gpuvec/CartPole-v1", device="cpu")


def test_step_after_the_end_warns_like_gymnasium(env):
    env.reset(seed=0)
    env.set_state({"x": 2.5})
    assert env.step(1)[2]
    for ended in (env, pickle.loads(pickle.dumps(env))):  # noqa: S301  # its own bytes
        with pytest.warns(UserWarning, match=r"this episode has terminated: call reset\(\) first"):
            _, reward, terminated, _, _ = ended.step(1)
        assert (reward, terminated) == (0.0, True)
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not env.step(1)[2]


def test_scalar_env_equals_a_vector_env_of_one_row(env):
    row = make("gpuvec/CartPole-v1", 1, autoreset_mode=AutoresetMode.DISABLED)
    obs, _ = env.reset(seed=5)
    drawn_seed = int(np.random.Generator(np.random.PCG64(np.random.SeedSequence(5))).integers(2**63))
    np.testing.assert_array_equal(row.reset(seed=drawn_seed)[0][0], obs)
    for t in range(12):
        np.testing.assert_array_equal(row.step(np.array([t % 2]))[0][0], env.step(t % 2)[0])


def test_async_vector_env_steps_the_env_in_a_process(env):
    """The start method `spawn` pickles the function that makes the environment and does not copy the process."""
    many = AsyncVectorEnv([lambda: gym.make("gpuvec:gpuvec/CartPole-v1")], context="spawn")
    try:
        np.testing.assert_array_equal(many.reset(seed=[5])[0], [env.reset(seed=5)[0]])
        for action in (0, 1, 1):
            obs, reward, *_ = many.step(np.array([action]))
            np.testing.assert_array_equal(obs, [env.step(action)[0]])
            np.testing.assert_array_equal(reward, [1.0])
    finally:
        many.close()
