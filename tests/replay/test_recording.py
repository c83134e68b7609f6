"""Recordings of policies: what a replay says that a policy observed and computed is what it observes and computes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import gpuvec
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy
from gpuvec.replay.recording import find_neighbors, record_policy
from tests.support.random_policies import CASES, PolicyCase

GAME = {"num_taggers": 2, "num_runners": 4, "max_episode_steps": 9, "use_full_observation": False}
NEAREST = PolicyCase("gpuvec/TagContinuous-v0", settings={"params": {**GAME, "num_other_agents_observed": 3}})


def record(case, **options):
    policy = TrainedPolicy(case.contents())
    return policy, record_policy(policy, "random weights", **options)


def test_details_of_one_agent_are_those_of_the_policy() -> None:
    policy, (first, second) = record(CASES["discrete"], rows=2, seed=5, max_steps=20)
    for scene in (first, second):
        episode, details = scene.episode, scene.details
        assert (scene.policy, episode.seed, list(details.agents)) == ("random weights", 5, [0])
        obs = np.stack([episode.states[name][:-1] for name in ("x", "x_dot", "theta", "theta_dot")], 1)
        np.testing.assert_array_equal(details.observation[:, 0], obs)
        np.testing.assert_allclose(details.probabilities[:, 0], policy.probabilities(obs), rtol=1e-5)
        np.testing.assert_allclose(details.value[:, 0], policy.value(obs), rtol=1e-5)
        np.testing.assert_array_equal(details.action[:, 0, 0], episode.actions)
        np.testing.assert_array_equal(episode.actions, policy.act(obs))
        value, gamma = details.value[:, 0], policy.args["all"].gamma
        following = np.append(value[1:], 0.0 if episode.terminated else np.nan)
        np.testing.assert_allclose(details.td_error[:, 0], episode.rewards + gamma * following - value, rtol=1e-4, atol=1e-5)
        (event,) = scene.events
        assert (event.kind, event.frame) == ("td_error", int(np.nanargmax(np.abs(details.td_error))))
    assert (first.episode.states["x"] != second.episode.states["x"][: len(first.episode.states["x"])]).any()


def test_drawn_actions_depend_on_the_seed_alone() -> None:
    recordings = [record(CASES["discrete"], rows=1, seed=5, max_steps=20, stochastic=True)[1][0] for _ in range(2)]
    np.testing.assert_array_equal(recordings[0].episode.actions, recordings[1].episode.actions)
    policy, (greedy,) = record(CASES["discrete"], rows=1, seed=5, max_steps=20)
    assert policy.roles == ("all",)
    count = min(len(greedy.episode.actions), len(recordings[0].episode.actions))
    assert (greedy.episode.actions[:count] != recordings[0].episode.actions[:count]).any()


def test_the_longest_episodes_are_kept_in_the_order_of_their_rows() -> None:
    _, scenes = record(CASES["discrete"], rows=6, seed=5)
    _, longest = record(CASES["discrete"], rows=6, seed=5, keep_longest=3, mark_td_errors=False)
    lengths = {scene.episode.row: len(scene.episode.rewards) for scene in scenes}
    rows = [scene.episode.row for scene in longest]
    assert rows == sorted(sorted(lengths, key=lambda row: (-lengths[row], row))[:3])
    for scene in longest:
        whole = scenes[scene.episode.row]
        np.testing.assert_array_equal(scene.details.observation, whole.details.observation)
        assert [event.kind for event in whole.events] == ["td_error"]
        assert not scene.events


def test_parameters_of_a_recording_replace_those_of_the_policy() -> None:
    _, (scene,) = record(CASES["discrete"], seed=5, max_steps=2, params={"x_limit": 1.5})
    assert scene.episode.params.x_limit == 1.5


def test_neighbors_are_the_nearest_active_agents() -> None:
    _, (scene,) = record(NEAREST, seed=1, max_steps=9)
    episode, details = scene.episode, scene.details
    assert set(details.agents) == set(range(6))
    x, y, alive = (episode.states[name] for name in ("x", "y", "alive"))
    for t, of_agents in enumerate(details.neighbors):
        for i, slots in zip(details.agents, of_agents, strict=True):
            distance = (x[t] - x[t, i]) ** 2 + (y[t] - y[t, i]) ** 2
            others = [j for j in np.argsort(distance, kind="stable").tolist() if j != i and alive[t, j]]
            assert slots.tolist() == ([*others, -1, -1, -1][:3] if alive[t, i] else [-1, -1, -1])


def test_environments_without_a_search_have_no_neighbors() -> None:
    (discrete,) = record(CASES["discrete"], max_steps=2)[1]
    assert discrete.details.neighbors is None
    assert find_neighbors(discrete.episode, [0]) is None


@pytest.mark.parametrize("case", ["means", "masked", "components", "critic"])
def test_other_spaces(case) -> None:
    policy, (scene,) = record(CASES[case], max_steps=6)
    details, steps = scene.details, len(scene.episode.rewards)
    assert details.observation.shape[:2] == (steps, len(details.agents))
    assert (details.probabilities is None) == (case == "means")
    assert (details.value is None) == (case == "critic")
    if details.probabilities is not None:
        num_components = details.action.shape[2]
        assert len(details.action_sizes) == num_components
        assert sum(details.action_sizes) == details.probabilities.shape[2]
        np.testing.assert_allclose(details.probabilities.sum(-1), num_components, rtol=1e-5)
    assert policy.env == CASES[case].env


def test_roles_with_spaces_of_their_own_have_details_of_one_role() -> None:
    policy, (scene,) = record(CASES["roles"], max_steps=4)
    details, episode = scene.details, scene.episode
    assert set(episode.actions) == {"lamp", "watcher", "runner"}
    sizes = {role: actions.shape[1] for role, actions in episode.actions.items()}
    role = max(sizes, key=lambda name: sizes[name])
    assert len(details.agents) == sizes[role]
    np.testing.assert_array_equal(details.action.reshape(episode.actions[role].shape), episode.actions[role])
    assert details.observation.shape[2] == policy.spaces[role].observation.shape[0]
    np.testing.assert_allclose(details.value, policy.value(details.observation, role=role), rtol=1e-5)
    rewards = episode.rewards[:, details.agents]
    following = np.append(details.value[1:], np.full_like(details.value[:1], 0.0 if episode.terminated else np.nan), axis=0)
    expected = rewards + policy.args[role].gamma * following - details.value
    np.testing.assert_allclose(details.td_error, expected, rtol=1e-4, atol=1e-5)


def test_a_replay_of_a_recording_has_its_details(tmp_path) -> None:
    _, scenes = record(NEAREST, seed=1)
    read = gpuvec.replay.read_replay(gpuvec.replay.write(tmp_path / "tag.html", scenes))
    (header,) = read.header["scenes"]
    np.testing.assert_array_equal(read.array(header["details"]["neighbors"]), scenes[0].details.neighbors)
    probabilities = read.array(header["details"]["probabilities"])
    np.testing.assert_allclose(probabilities, scenes[0].details.probabilities, atol=0.003)
