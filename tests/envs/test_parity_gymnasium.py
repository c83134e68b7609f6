"""Every bundled environment against Gymnasium's scalar one: one step from the same state, for states that random play reaches.

The oracle computes in float64, from states rounded to float32. Where its new state lies within 1e-5 of a threshold, or an
angle within 1e-4 of its wrap, rounding decides: such states are left out, at most 1 % of them.
"""

from functools import lru_cache
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
from tests.support.arrays import host, step

from gpuvec_envs import acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum

TOLERANCE = 1e-5
PLAYED = 10_000  # states from Gymnasium's own starts
ELSEWHERE = 2_000  # and from all over the state space, to meet the walls, goals and limits that random play hardly does


class Case(NamedTuple):
    module: object
    low: tuple  # bounds of the states
    high: tuple


class Transitions(NamedTuple):
    """(N, ...) arrays; `clear` is False where rounding decides."""

    before: np.ndarray
    action: np.ndarray
    after: np.ndarray
    obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    clear: np.ndarray


CASES = {
    "CartPole-v1": Case(cartpole, (-2.5, -5.0, -0.22, -5.0), (2.5, 5.0, 0.22, 5.0)),
    "MountainCar-v0": Case(mountain_car, (-1.2, -0.07), (0.6, 0.07)),
    "MountainCarContinuous-v0": Case(continuous_mountain_car, (-1.2, -0.07), (0.6, 0.07)),
    "Pendulum-v1": Case(pendulum, (-8.0, -8.0), (8.0, 8.0)),
    "Acrobot-v1": Case(acrobot, (-np.pi, -np.pi, -9.0, -9.0), (np.pi, np.pi, 9.0, 9.0)),
}


def margin(env, name, x):
    """How far the new state is from where rounding decides, in units of what is left out."""
    if name == "CartPole-v1":
        return min(abs(abs(x[0]) - env.x_threshold), abs(abs(x[2]) - env.theta_threshold_radians)) / 1e-5
    if name == "Acrobot-v1":
        height = -np.cos(x[0]) - np.cos(x[0] + x[1])
        return min(abs(height - 1.0) / 1e-5, (np.pi - np.abs(x[:2])).min() / 1e-4)
    if name.startswith("MountainCar"):
        beyond = x[0] - env.goal_position
        return min(abs(beyond), abs(x[1] - env.goal_velocity) if beyond > -1e-5 else np.inf) / 1e-5
    return np.inf


@lru_cache
def transitions(name):
    """Transitions of random play first, then of states drawn within the bounds."""
    _, low, high = CASES[name]
    env, limit = gymnasium.make(name).unwrapped, gymnasium.spec(name).max_episode_steps
    drawn = iter(np.random.default_rng(0).uniform(low, high, (ELSEWHERE, len(low))))
    env.action_space.seed(0)
    env.reset(seed=0)
    rows, t = [], 0
    while len(rows) < PLAYED + ELSEWHERE:
        before = np.array(env.state if len(rows) < PLAYED else next(drawn), np.float32)
        env.state = before.astype(np.float64)
        action = env.action_space.sample()
        obs, reward, terminated, _, _ = env.step(action)
        after = np.array(env.state, np.float64)
        if np.all((before >= np.float32(low)) & (before <= np.float32(high))):
            rows.append((before, action, after, obs, reward, terminated, margin(env, name, after) > 1.0))
        t += 1
        if terminated or t == limit or len(rows) > PLAYED:
            env.reset()
            t = 0
    return Transitions(*map(np.array, zip(*rows, strict=True)))


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", CASES)
def test_one_step_agrees(name, device):
    known, fields = transitions(name), CASES[name].module.State._fields
    assert known.clear.mean() >= 0.99

    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=len(known.before), device=device, autoreset_mode="Disabled")
    env.reset(seed=0)
    env.set_state(dict(zip(fields, known.before.T, strict=True)))
    obs, reward, terminated, truncated, info = step(env, known.action)
    state = np.stack([host(env.get_state())[field] for field in fields], 1)
    env.close()

    clear = known.clear
    np.testing.assert_allclose(obs[clear], known.obs[clear], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(state[clear], known.after[clear], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(reward[clear], known.reward[clear], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(terminated[clear], known.terminated[clear])
    assert not truncated.any()
    assert info == {}


@pytest.mark.parametrize("name", CASES)
def test_the_states_show_all_the_rules(name):
    known = transitions(name)
    if name == "Pendulum-v1":
        assert not known.terminated.any()
        assert np.abs(known.before[:, 0]).max() > 2.0 * np.pi  # beyond a turn
        assert (np.abs(known.after[:, 1]) == 8.0).any()
    else:
        assert known.terminated.any()
        assert not known.terminated.all()
    if name.startswith("MountainCar"):
        at_the_wall = known.after[:, 0] <= -1.2
        assert at_the_wall.any()
        assert (known.after[at_the_wall, 1] == 0.0).all()


@pytest.mark.parametrize("name", CASES)
def test_the_spec_agrees(name):
    ours, theirs = gymnasium.spec(f"gpuvec/{name}"), gymnasium.spec(name)
    assert ours.max_episode_steps == theirs.max_episode_steps
    assert ours.reward_threshold == theirs.reward_threshold


@pytest.mark.parametrize("name", CASES)
def test_spaces_agree(name):
    env, theirs = CASES[name].module.ENV, gymnasium.make(name)
    observation, action = env.spaces(env.params)
    assert observation == theirs.observation_space
    assert action == theirs.action_space
    assert env.render_fps == theirs.metadata["render_fps"]
