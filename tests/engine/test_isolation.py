"""An environment whose numbers are not finite changes no other row of its batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, register, uniform


class Walker(NamedTuple):
    """A walk; some environments are spoilt from their third step on."""

    x: float
    time: int
    is_late: bool


class WalkerParams(NamedTuple):
    """Whether anyone is spoilt."""

    spoils: bool = False


def reset(key: Key, p: WalkerParams) -> Walker:
    return Walker(uniform(key, 0, -1.0, 1.0), 0, uniform(key, 1, 0.0, 1.0) < 0.3)


def step(s: Walker, action: int, key: Key, p: WalkerParams) -> Any:
    x = 0.5 * s.x + uniform(key, 0, -1.0, 1.0) + 0.1 * action
    if p.spoils and s.is_late and s.time >= 2:
        x = float("nan")
    return Walker(x, s.time + 1, s.is_late), x, x > 1.2


def observe(s: Walker, p: WalkerParams) -> Any:
    return s.x, 2.0 * s.x, 1.0 if s.is_late else 0.0


SPACES = Box(-np.inf, np.inf, (3,), np.float32), Discrete(2)
ENV = SingleAgentEnv(Walker, WalkerParams(), reset, step, observe, lambda p: SPACES, max_episode_steps=20)
register("tests/SpoiledWalker-v0", ENV)


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_what_is_not_finite_stays_in_its_row(backend: str, mode: str) -> None:
    rows = 40 if backend == "simulator" else 700  # more than one block of either
    output = "dlpack" if backend == "cuda" else "numpy"

    def run(spoils: bool) -> list[list[Any]]:
        envs = gym.make_vec("tests/SpoiledWalker-v0", rows, device=backend, output=output, autoreset_mode=mode, spoils=spoils)
        envs.reset(seed=7)
        steps = []
        actions = np.arange(rows, dtype=np.int64) % 2
        if backend == "cuda":
            import cupy

            actions = cupy.asarray(actions)
        for _ in range(12):
            found = envs.step(actions)[:4]
            if backend == "cuda":
                found = tuple(cupy.asnumpy(cupy.from_dlpack(x)) for x in found)
            steps.append([np.array(x) for x in found])
        envs.close()
        return steps

    plain, spoilt = run(False), run(True)
    touched = np.zeros(rows, bool)  # rows that have had a number that is not finite
    for before, after in zip(plain, spoilt, strict=True):
        touched |= ~np.isfinite(after[0]).all(1) | ~np.isfinite(after[1])
        for x, y in zip(before, after, strict=True):
            np.testing.assert_array_equal(x[~touched], y[~touched])
    assert 0.1 < touched.mean() < 0.9
