"""`gpuvec.fetch_episode` returns the states, actions and rewards of one episode of selected environments."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from tests.support import counter_env
from tests.support.arrays import host, on_device
from tests.support.street_env import make as make_street

import gpuvec
from gpuvec.errors import StateError
from gpuvec.vector.wrappers import FlattenAgents, RecordEpisodeStatistics


def make_row_policy(envs):
    """Makes a policy whose action is the index of the row modulo 3."""
    actions = on_device(envs, np.arange(envs.num_envs) % 3)
    return lambda obs: actions


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_episodes_of_a_counter(device, mode):
    envs = counter_env.make("tests/Counter-v0", 4, device=device, autoreset_mode=mode, maximum=(3.0, 5.0, 2.0, 9.0))
    second, first = gpuvec.fetch_episode(envs, make_row_policy(envs), rows=[1, 0], seed=0)
    assert first.states["count"].tolist() == [0, 1, 2, 3]
    assert second.states["count"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (first.actions.tolist(), first.rewards.tolist()) == ([0] * 3, [0.0] * 3)
    assert (second.actions.tolist(), second.rewards.tolist()) == ([1] * 5, [1.0] * 5)
    assert (first.terminated, first.truncated) == (second.terminated, second.truncated) == (True, False)
    assert (first.name, first.row, second.row, first.seed) == ("tests/Counter-v0", 0, 1, 0)
    assert [episode.params.maximum for episode in (first, second)] == [3.0, 5.0]


def test_truncated_episode_of_a_wrapped_env():
    envs = RecordEpisodeStatistics(counter_env.make("tests/Counter-v0", 2, max_episode_steps=2))
    (episode,) = gpuvec.fetch_episode(envs, make_row_policy(envs))
    assert (episode.states["count"].tolist(), episode.terminated, episode.truncated) == ([0, 1, 2], False, True)


def test_episode_equals_gymnasium():
    envs, plain = gym.make_vec("gpuvec/CartPole-v1", 3, device="cpu", output="numpy"), gym.make("CartPole-v1")
    (episode,) = gpuvec.fetch_episode(envs, lambda obs: (obs[:, 2] > 0).astype(np.int64), rows=(2,), seed=3)
    plain.reset(seed=0)
    plain.unwrapped.state = [episode.states[name][0] for name in ("x", "x_dot", "theta", "theta_dot")]
    for t, action in enumerate(episode.actions):
        obs, reward, terminated, *_ = plain.step(int(action))
        np.testing.assert_allclose([episode.states[k][t + 1] for k in ("x", "x_dot", "theta", "theta_dot")], obs, atol=1e-4)
        assert reward == episode.rewards[t]
        assert terminated == (t == len(episode.actions) - 1)
    assert episode.terminated


def test_episode_of_many_agents(device):
    envs = make_street(3, device, max_episode_steps=4)
    stay = on_device(envs, np.ones((3, envs.num_agents), np.int64))
    (episode,) = gpuvec.fetch_episode(envs, lambda obs: stay, rows=(1,), seed=1)
    steps = len(episode.rewards)
    assert episode.states["x"].shape == (steps + 1, envs.num_agents)
    assert episode.actions.shape == episode.rewards.shape == (steps, envs.num_agents)
    assert (episode.states["x"] == episode.states["x"][0]).all()  # no agent moves
    envs.reset(seed=1)
    np.testing.assert_array_equal(episode.states["x"][0], host(envs.get_state())["x"][1])


@pytest.mark.parametrize(
    ("envs", "rows", "message"),
    [
        (
            lambda: counter_env.make("tests/Counter-v0", 2, autoreset_mode="SameStep"),
            (0,),
            "autoreset_mode='NextStep' or 'Disabled'",
        ),
        (lambda: counter_env.make("tests/Counter-v0", 2), (2,), r"numbers from 0 to 1, at least one, got \(2,\)"),
        (lambda: counter_env.make("tests/Counter-v0", 2), (), r"at least one, got \(\)"),
        (lambda: counter_env.make("tests/Counter-v0", 2), (1, 1), r"different numbers"),
        (lambda: FlattenAgents(make_street(2)), (0,), "8 rows for 2 environments"),
        (lambda: gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")]), (0,), "states of gpuvec environments"),
    ],
)
def test_invalid_arguments_raise(envs, rows, message):
    with pytest.raises(StateError, match=message):
        gpuvec.fetch_episode(envs(), lambda obs: 1 / 0, rows=rows)


def test_policy_gets_the_action_mask():
    """Each action is the last one that the mask of its observation allows: moves into the column that is full last."""
    envs = gym.make_vec("gpuvec/ConnectFour-v0", num_envs=2, device="cpu", output="numpy")
    masks = []

    def act(obs, mask):
        masks.append(mask[1].copy())
        return 6 - mask[:, :, ::-1].argmax(-1)

    (episode,) = gpuvec.fetch_episode(envs, act, rows=[1], seed=0)
    assert len(masks) == len(episode.actions) > 4
    for mask, actions in zip(masks, episode.actions, strict=True):
        assert mask[[0, 1], actions].all()
    assert not np.all(masks)
