"""The observations of a critic: equal to their definition after resets and steps, final ones, and wrong declarations."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.support.arrays import host, on_device
from tests.support.guess_env import GUESSER, GUESSERS, hidden_of, observe
from tests.support.vector_envs import make_envs

from gpuvec import Features, Observation
from gpuvec.errors import AuthoringError
from gpuvec.testing import check_env
from gpuvec.vector.wrappers import FlattenAgents

NUM_ENVS = 4


def make(env: Any, device: str = "cpu", mode: str = "SameStep", **kwargs: Any) -> Any:
    """Returns environments that return NumPy arrays, on a GPU CuPy arrays."""
    return make_envs(env, NUM_ENVS, device, autoreset_mode=mode, **kwargs)


def expected_rows(state: dict[str, Any], steps: Any) -> Any:
    """The critic's observations of all agents, (E, A, 2 A + 2): hidden numbers, the agent, its signal and the time."""
    hidden, signal = state["hidden"].astype(np.float32), state["signal"]
    num_agents = hidden.shape[1]
    others = np.broadcast_to(hidden[:, None], (NUM_ENVS, num_agents, num_agents))
    itself = np.broadcast_to(np.eye(num_agents, dtype=np.float32), others.shape)
    time = np.broadcast_to(np.float32(steps), signal.shape)
    return np.concatenate([others, itself, signal[..., None], time[..., None]], -1)


# With 2,500 agents a second kernel writes the observations on a GPU.
MANY = pytest.param("SameStep", 2500, marks=pytest.mark.slow_on("cpu"))


@pytest.mark.first_variants(2)
@pytest.mark.parametrize(("mode", "num_agents"), [("SameStep", 3), MANY, ("Disabled", 3), ("NextStep", 3)])
def test_rows_are_those_of_the_state(device, mode, num_agents):
    env, rng = make(GUESSERS, device, mode, agents=num_agents), np.random.default_rng(0)
    assert env.single_critic_observation_space.shape == (num_agents, 2 * num_agents + 2)
    assert env.critic_observation_space.shape == (NUM_ENVS, num_agents, 2 * num_agents + 2)
    _, infos = env.reset(seed=1)
    np.testing.assert_array_equal(host(infos["critic_obs"]), expected_rows(host(env.get_state()), 0))
    states = [host(env.get_state())]
    for t in range(1, 8 if num_agents < 100 else 7):
        infos = env.step(on_device(env, rng.integers(0, 2, (NUM_ENVS, num_agents))))[4]
        states.append(host(env.get_state()))
        steps = min(t, 5) if mode == "Disabled" else t % 5 if mode == "SameStep" else t % 6
        np.testing.assert_array_equal(host(infos["critic_obs"]), expected_rows(states[-1], steps))
        if mode == "SameStep":
            ended = host(infos["_final_obs"])
            assert ended.all() == (t == 5)
            if ended.all():
                final = host(infos["final_critic_obs"])
                np.testing.assert_array_equal(final[..., -2], host(infos["final_obs"])[..., 0])
                np.testing.assert_array_equal(final[..., -1], np.full((NUM_ENVS, num_agents), 5.0))


def test_one_agent(device):
    env = make(GUESSER, device)
    assert env.single_critic_observation_space.shape == (3,)
    _, infos = env.reset(seed=0)
    for t in range(1, 10):
        state = host(env.get_state())
        critic = host(infos["critic_obs"])
        np.testing.assert_array_equal(critic[:, :2], np.stack([state["signal"], state["hidden"]], -1))
        np.testing.assert_array_equal(critic[:, 2], state["age"])
        obs, _, terminated, _, infos = env.step(on_device(env, np.zeros(NUM_ENVS, int)))
        if t % 4 == 0:
            assert host(terminated).all()
            final = host(infos["final_critic_obs"])
            np.testing.assert_array_equal(final[:, 0], host(infos["final_obs"])[:, 0])
            np.testing.assert_array_equal(final[:, 2], [4.0] * NUM_ENVS)
        np.testing.assert_array_equal(host(infos["critic_obs"])[:, 0], host(obs)[:, 0])


def test_agents_that_observe_images_may_have_features_for_a_critic(device):
    env = make(GUESSERS, device, agents=2, has_images=True)
    assert env.single_critic_observation_space.shape == (2, 6)
    obs, infos = env.reset(seed=0)
    for t in range(12):
        state = host(env.get_state())
        assert host(obs).shape == (NUM_ENVS, 2, 2, 3, 3)
        np.testing.assert_array_equal(host(obs)[..., 0, 0, 1], state["hidden"])
        np.testing.assert_array_equal(host(infos["critic_obs"]), expected_rows(state, t % 5))
        obs, _, _, truncated, infos = env.step(on_device(env, np.ones((NUM_ENVS, 2), int)))
        if host(truncated).all():
            final, hidden = host(infos["final_critic_obs"]), host(infos["final_obs"])[..., 0, 0, 1]
            np.testing.assert_array_equal(final[:, 0, :2], hidden)
            np.testing.assert_array_equal(final[..., -1], np.full((NUM_ENVS, 2), 5.0))


def test_flattened_agents_have_rows_of_their_own():
    inner, env = make(GUESSERS), FlattenAgents(make(GUESSERS))
    assert env.single_critic_observation_space.shape == (8,)
    rows = env.reset(seed=1)[1]["critic_obs"]
    np.testing.assert_array_equal(rows, inner.reset(seed=1)[1]["critic_obs"].reshape(12, 8))


def test_an_environment_without_a_critic_has_no_space():
    env = make(dataclasses.replace(GUESSERS, critic_observation=None))
    assert env.critic_observation_space is None
    assert "critic_obs" not in env.reset(seed=0)[1]


@pytest.mark.parametrize("env", [GUESSERS, GUESSER], ids=["agents", "one agent"])
def test_check_env_accepts_a_critic(env):
    check_env(env, num_envs=4, kernels=False, replay_seconds=0.1)


def beyond(i: int, s: Any, t: Any, p: Any) -> tuple[float]:
    return (s.signal[i + 1],)


def test_check_env_finds_a_fault_of_the_critic():
    env = dataclasses.replace(GUESSERS, critic_observation=lambda p: Observation(beyond))
    with pytest.raises(AuthoringError, match=r"signal\[3\] does not exist"):
        check_env(env, num_envs=2, kernels=False)


WRONG = {
    "nothing": (lambda p: None, r"critic_observation\(p\) returned NoneType; it must return Observation\(self_features"),
    "image": (lambda p: Observation(pixel=observe), "returned an image; a critic observes features, also where agents"),
    "neighbors": (
        lambda p: Observation(observe, observe, 2),
        "has other_features or neighbors; it may have self_features",
    ),
    "set": (lambda p: Observation(observe, blocks=(Features("cells", hidden_of),)), "features over 'cells', which is no set"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_declaration_is_refused(fault):
    function, message = WRONG[fault]
    with pytest.raises(AuthoringError, match=message):
        make(dataclasses.replace(GUESSERS, critic_observation=function))
