"""An env with nonfinite numbers changes no other env of its batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, register, uniform


class Walker(NamedTuple):
    """A random walk; some envs become NaN in their third step."""

    x: float
    time: int
    has_fault: bool


class WalkerParams(NamedTuple):
    """Whether envs become NaN."""

    inject_nan: bool = False


def reset(key: Key, p: WalkerParams) -> Walker:
    return Walker(uniform(key, 0, -1.0, 1.0), 0, uniform(key, 1, 0.0, 1.0) < 0.3)


def step(s: Walker, action: int, key: Key, p: WalkerParams) -> Any:
    x = 0.5 * s.x + uniform(key, 0, -1.0, 1.0) + 0.1 * action
    if p.inject_nan and s.has_fault and s.time >= 2:
        x = float("nan")
    return Walker(x, s.time + 1, s.has_fault), x, x > 1.2


def observe(s: Walker, p: WalkerParams) -> Any:
    return s.x, 2.0 * s.x, 1.0 if s.has_fault else 0.0


SPACES = Box(-np.inf, np.inf, (3,), np.float32), Discrete(2)
ENV = SingleAgentEnv(Walker, WalkerParams(), reset, step, observe, lambda p: SPACES, max_episode_steps=20)
register("tests/NanWalker-v0", ENV)


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_nonfinite_numbers_stay_in_their_env(backend: str, mode: str) -> None:
    num_envs = 40 if backend == "simulator" else 700  # more than one block
    output = "dlpack" if backend == "cuda" else "numpy"

    def run(inject_nan: bool) -> list[list[Any]]:
        envs = gym.make_vec(
            "tests/NanWalker-v0", num_envs, device=backend, output=output, autoreset_mode=mode, inject_nan=inject_nan
        )
        envs.reset(seed=7)
        steps = []
        actions = np.arange(num_envs, dtype=np.int64) % 2
        if backend == "cuda":
            import cupy

            actions = cupy.asarray(actions)
        for _ in range(12):
            step_outputs = envs.step(actions)[:4]
            if backend == "cuda":
                step_outputs = tuple(cupy.asnumpy(cupy.from_dlpack(x)) for x in step_outputs)
            steps.append([np.array(x) for x in step_outputs])
        envs.close()
        return steps

    finite_run, nan_run = run(False), run(True)
    is_affected = np.zeros(num_envs, bool)  # envs that have had a nonfinite number
    for expected, outputs in zip(finite_run, nan_run, strict=True):
        is_affected |= ~np.isfinite(outputs[0]).all(1) | ~np.isfinite(outputs[1])
        for x, y in zip(expected, outputs, strict=True):
            np.testing.assert_array_equal(x[~is_affected], y[~is_affected])
    assert 0.1 < is_affected.mean() < 0.9
