"""Observations of many features: every feature has its value, and the code does not grow with their number."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, register, uniform
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.single_agent import step_blocked

NUM_FEATURES = step_blocked.LOOP_MIN_FEATURES + 8


class Pair(NamedTuple):
    """Two numbers from which all features are computed."""

    x: float
    count: int


class NoParams(NamedTuple):
    """No parameters."""


def reset(key: Key, p: NoParams) -> Pair:
    return Pair(uniform(key, 0, -1.0, 1.0), 0)


def step(s: Pair, action: int, key: Key, p: NoParams) -> Any:
    return Pair(s.x, s.count + 1), 1.0, s.count >= 3


FEATURES = "".join(f"{k}.0 * s.x + s.count, " for k in range(4, NUM_FEATURES))
observe = generate_function(
    "observe", f"def observe(s, p):\n    return (s.x, s.count, True, 7, {FEATURES})\n", __name__=__name__
)
SPACES = Box(-np.inf, np.inf, (NUM_FEATURES,), np.float32), Discrete(2)
ENV = SingleAgentEnv(Pair, NoParams(), reset, step, observe, lambda p: SPACES, max_episode_steps=50)
register("tests/Wide-v0", ENV)


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_every_feature_has_its_value(backend: str, mode: str) -> None:
    """Episodes end with the fourth step, so a few steps contain observations of resets, steps and episode ends."""
    num_envs = 5 if backend == "simulator" else 300
    output = "dlpack" if backend == "cuda" else "numpy"

    def host(x: Any) -> Any:
        if backend != "cuda":
            return np.array(x)
        import cupy

        return cupy.asnumpy(cupy.from_dlpack(x))

    envs = gym.make_vec("tests/Wide-v0", num_envs, device=backend, output=output, autoreset_mode=mode)
    actions: Any = np.zeros(num_envs, np.int64)
    if backend == "cuda":
        import cupy

        actions = cupy.zeros(num_envs, np.int64)
    observations = [host(envs.reset(seed=3)[0])]
    for _ in range(4):
        obs, _, terminated, _, info = envs.step(actions)
        observations.append(host(obs))
    assert host(terminated).all()
    counts = {"SameStep": [0, 1, 2, 3, 0], "NextStep": [0, 1, 2, 3, 4], "Disabled": [0, 1, 2, 3, 4]}[mode]
    if mode == "SameStep":
        observations.append(host(info["final_obs"]))
        counts = [*counts, 4]
    factors = np.arange(NUM_FEATURES, dtype=np.float64)
    for obs, count in zip(observations, counts, strict=True):
        expected = factors * obs[:, :1].astype(np.float64) + count
        expected[:, :4] = np.stack([obs[:, 0], np.full(num_envs, count), np.ones(num_envs), np.full(num_envs, 7)], 1)
        np.testing.assert_allclose(obs, expected, rtol=1e-6, atol=1e-6)
    assert np.unique(observations[0][:, 0]).size == num_envs
    np.testing.assert_array_equal(observations[0][:, 0], observations[3][:, 0])
    envs.close()
