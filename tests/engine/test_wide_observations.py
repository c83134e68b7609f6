"""Observations of many features: the right numbers in the right places, and code that does not grow with each of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, register, uniform
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.single_agent import step_blocked

WIDTH = step_blocked.LOOP_MIN_FEATURES + 8


class Pair(NamedTuple):
    """Two numbers, of which all features are made."""

    x: float
    count: int


class NoParams(NamedTuple):
    """None."""


def reset(key: Key, p: NoParams) -> Pair:
    return Pair(uniform(key, 0, -1.0, 1.0), 0)


def step(s: Pair, action: int, key: Key, p: NoParams) -> Any:
    return Pair(s.x, s.count + 1), 1.0, s.count >= 3


FEATURES = "".join(f"{k}.0 * s.x + s.count, " for k in range(4, WIDTH))
observe = generate_function(
    "observe", f"def observe(s, p):\n    return (s.x, s.count, True, 7, {FEATURES})\n", __name__=__name__
)
SPACES = Box(-np.inf, np.inf, (WIDTH,), np.float32), Discrete(2)
ENV = SingleAgentEnv(Pair, NoParams(), reset, step, observe, lambda p: SPACES, max_episode_steps=50)
register("tests/Wide-v0", ENV)


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
def test_every_feature_is_in_its_place(backend: str, mode: str) -> None:
    """Episodes end with the fourth step, so a few steps show observations of resets, of steps and of ends."""
    rows = 5 if backend == "simulator" else 300
    output = "dlpack" if backend == "cuda" else "numpy"

    def host(x: Any) -> Any:
        if backend != "cuda":
            return np.array(x)
        import cupy

        return cupy.asnumpy(cupy.from_dlpack(x))

    envs = gym.make_vec("tests/Wide-v0", rows, device=backend, output=output, autoreset_mode=mode)
    actions: Any = np.zeros(rows, np.int64)
    if backend == "cuda":
        import cupy

        actions = cupy.zeros(rows, np.int64)
    found = [host(envs.reset(seed=3)[0])]
    for _ in range(4):
        obs, _, terminated, _, info = envs.step(actions)
        found.append(host(obs))
    assert host(terminated).all()
    counts = {"SameStep": [0, 1, 2, 3, 0], "NextStep": [0, 1, 2, 3, 4], "Disabled": [0, 1, 2, 3, 4]}[mode]
    if mode == "SameStep":
        found.append(host(info["final_obs"]))
        counts = [*counts, 4]
    factors = np.arange(WIDTH, dtype=np.float64)
    for row, count in zip(found, counts, strict=True):
        expected = factors * row[:, :1].astype(np.float64) + count
        expected[:, :4] = np.stack([row[:, 0], np.full(rows, count), np.ones(rows), np.full(rows, 7)], 1)
        np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-6)
    assert np.unique(found[0][:, 0]).size == rows
    np.testing.assert_array_equal(found[0][:, 0], found[3][:, 0])
    envs.close()
