"""MyGame follows Gymnasium's rules, those of device code, and the rules in its docstring."""

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env as check_gymnasium
from gpuvec.testing import check_env

import my_game  # noqa: F401  # registers the environment

ID = "my_game/MyGame-v0"


def test_gymnasium_accepts_the_environment():
    check_gymnasium(gymnasium.make(ID).unwrapped, skip_render_check=True)


def test_it_follows_the_rules_of_device_code():
    check_env(ID)


def make(num_envs, **params):
    """Creates boats on the CPU; with `device="cuda"` and `output="torch"` they are on a GPU."""
    return gymnasium.make_vec(ID, num_envs=num_envs, device="cpu", output="numpy", autoreset_mode="Disabled", **params)


def test_a_step_forwards():
    """In 0.1 s an acceleration of 1 m/s^2 increases the speed to 0.1 m/s, with which the boat moves 0.01 m."""
    envs = make(1, current=0.0, gust=0.0)
    envs.reset(seed=0)
    envs.set_state({"buoy": np.array([3.0])})
    obs, reward, terminated, truncated, _ = envs.step(np.array([2]))
    np.testing.assert_allclose(obs, [[2.99, 0.1]], rtol=1e-6)
    np.testing.assert_allclose(reward, [-0.05], rtol=1e-6)
    assert not terminated.any()
    assert not truncated.any()


def test_stopping_at_the_buoy_ends_the_episode():
    """The first boat has stopped at the buoy, the second is too fast, the third is too far away."""
    envs = make(3, current=0.0, gust=0.0)
    envs.reset(seed=0)
    envs.set_state({"position": np.array([2.9, 2.9, 2.0]), "speed": np.array([0.0, 0.5, 0.0]), "buoy": np.full(3, 3.0)})
    _, reward, terminated, _, _ = envs.step(np.array([1, 1, 1]))
    assert terminated.tolist() == [True, False, False]
    np.testing.assert_allclose(reward, [0.99, -0.01, -0.01], rtol=1e-5)
