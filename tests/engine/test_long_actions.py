"""Actions of many components, which functions receive as an array."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from tests.support.arrays import host, on_device
from tests.support.vector_envs import make_envs

from gpuvec import Floats, Ints, Key, MultiAgentEnv, Observation, Time, each, register
from gpuvec.testing import check_env

SIZES = np.arange(2, 22)  # of the components
STARTS = np.arange(-3, 17)
WEIGHTS = np.arange(1, 21)


class Sums(NamedTuple):
    total: Ints
    last: Floats
    pair_total: Ints


class Params(NamedTuple):
    is_box: bool = False


def reset(i: int, s: Sums, key: Key, p: Params) -> None:
    s.total[i], s.last[i], s.pair_total[i] = 0, 0.0, 0


def add(i: int, s: Sums, action: Any, key: Key, p: Params) -> None:
    total = 0
    for k in range(20):
        total += (k + 1) * int(action[k])
    s.total[i], s.last[i] = total, np.float32(action[19])


def add_pair(i: int, s: Sums, action: Any, key: Key, p: Params) -> None:
    s.pair_total[i] = int(action[i]) + int(action[19 - i])


def spaces(p: Params) -> tuple[Box, Any]:
    return Box(-np.inf, np.inf, (3,)), Box(-100.0, 100.0, (20,)) if p.is_box else MultiDiscrete(SIZES, start=STARTS)


def features(i: int, s: Sums, t: Time, p: Params) -> tuple[float, float, float]:
    return np.float32(s.total[i]), s.last[i], np.float32(s.pair_total[i])


SUMS = MultiAgentEnv(
    state=Sums,
    params=Params(),
    spaces=spaces,
    agents=lambda p: 3,
    reset=reset,
    phases=(add, each("agents", add_pair)),
    reward=lambda i, s, t, p: 0.0,
    terminated=lambda i, s, p: False,
    observation=lambda p: Observation(features),
    structural=("is_box",),
    max_episode_steps=50,
)
register("tests/Sums-v0", SUMS)


def make(num_envs: int, device: str, **kwargs: Any) -> Any:
    """Returns envs that return NumPy arrays, on a GPU CuPy arrays."""
    return make_envs(SUMS, num_envs, device, **kwargs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_are_those_of_the_components(device, dtype):
    env = make(100, device)
    env.reset(seed=0)
    actions = (np.random.default_rng(0).integers(0, SIZES, (100, 3, 20)) + STARTS).astype(dtype)
    obs = host(env.step(on_device(env, actions))[0])
    np.testing.assert_array_equal(obs[..., 0], (actions * WEIGHTS).sum(-1))
    np.testing.assert_array_equal(obs[..., 1], actions[..., 19])
    np.testing.assert_array_equal(obs[..., 2], [[a[i, i] + a[i, 19 - i] for i in range(3)] for a in actions])


def test_integers_out_of_range_become_the_largest(device):
    env = make(1, device)
    env.reset(seed=0)
    actions = np.tile(STARTS, (1, 3, 1)).astype(np.int64)
    actions[0, 0, 19], actions[0, 1, 19] = STARTS[19] - 1, 2**40
    obs = host(env.step(on_device(env, actions))[0])
    assert obs[0, :, 1].tolist() == [STARTS[19] + SIZES[19] - 1, STARTS[19] + SIZES[19] - 1, STARTS[19]]


def test_numbers_of_a_box_are_passed_on(device):
    env = make(10, device, is_box=True)
    env.reset(seed=0)
    actions = np.random.default_rng(0).normal(size=(10, 3, 20)).astype(np.float32)
    obs = host(env.step(on_device(env, actions))[0])
    np.testing.assert_array_equal(obs[..., 1], actions[..., 19])


def test_the_checker_accepts_long_actions():
    check_env(dataclasses.replace(SUMS))
