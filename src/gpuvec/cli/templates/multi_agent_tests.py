"""MyGame follows the rules of device code, returns arrays of its spaces, and follows the rules in its docstring."""

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gpuvec.testing import check_env

import my_game  # noqa: F401  # registers the environment

ID = "my_game/MyGame-v0"
STAY, RIGHT = 0, 1


def test_it_follows_the_rules_of_device_code():
    """One of them is that results do not depend on the order of walkers."""
    check_env(ID)


def make(num_envs):
    """Creates meadows on the CPU; with `device="cuda"` and `output="torch"` they are on a GPU."""
    return gymnasium.make_vec(ID, num_envs=num_envs, device="cpu", output="numpy", autoreset_mode="Disabled")


def test_outputs_are_in_the_spaces_and_seeds_repeat_them():
    envs = make(2)
    first = envs.reset(seed=3)
    assert envs.observation_space.contains(first[0])
    envs.action_space.seed(0)
    for _ in range(5):
        obs, reward, terminated, truncated, infos = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(obs)
        assert reward.shape == infos["agent_mask"].shape == (2, envs.num_agents)
        assert terminated.shape == truncated.shape == (2,)
    assert data_equivalence(envs.reset(seed=3), first)


def test_the_edge_stops_a_walker():
    envs = make(1)
    envs.reset(seed=0)
    envs.set_state({"x": np.array([[1.0, 9.75, 5.0, 5.0]]), "y": np.array([[1.0, 9.0, 5.0, 1.0]])})
    envs.step(np.full((1, 4), RIGHT))
    np.testing.assert_allclose(envs.get_state()["x"], [[1.5, 10.0, 5.5, 5.5]])


def test_an_episode_ends_when_all_walkers_have_met():
    """In the first meadow there are two pairs; in the second one walker is alone."""
    envs = make(2)
    envs.reset(seed=0)
    envs.set_state({"x": np.array([[1.0, 1.5, 8.0, 8.5], [1.0, 1.5, 8.0, 5.0]]), "y": np.full((2, 4), 2.0)})
    obs, reward, terminated, _, _ = envs.step(np.full((2, 4), STAY))
    assert terminated.tolist() == [True, False]
    np.testing.assert_allclose(reward, [[1.0] * 4, [-0.01] * 4])
    np.testing.assert_allclose(obs[0, 0], [0.05, 0.7, 0.0, 0.0, 0.1, 0.2, 0.01], rtol=1e-5)
