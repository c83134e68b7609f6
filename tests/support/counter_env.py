"""Small environments with one agent whose numbers can be computed without a compiler, and functions that create them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from gpuvec import Key, SingleAgentEnv, randint, register, uniform


class Count(NamedTuple):
    count: float  # steps since `first`


class CountParams(NamedTuple):
    maximum: float = 5.0  # the count that ends an episode
    first: float = 0.0  # the count after a reset


def _reset(key: Key, p: CountParams) -> Count:
    return Count(p.first)


def _step(s: Count, action: int, key: Key, p: CountParams) -> tuple[Count, float, bool]:
    return Count(s.count + 1.0), action, s.count + 1.0 >= p.maximum


def _check(p: CountParams) -> None:
    if not p.first < p.maximum:
        raise ValueError(f"first is {p.first}; it must be below maximum, {p.maximum}.")


DRAWN: list[tuple[Count, CountParams]] = []  # the arguments of each call of `draw`


def _draw(s: Count, p: CountParams) -> Any:
    DRAWN.append((s, p))
    return np.full((4, 6, 3), int(s.count), np.uint8)


# The observation is the number of steps, the reward is the action, and the count `maximum` terminates the episode.
COUNTER = SingleAgentEnv(
    state=Count,
    params=CountParams(),
    reset=_reset,
    step=_step,
    observe=lambda s, p: (s.count,),
    spaces=lambda p: (Box(0.0, np.inf, (1,)), Discrete(10)),
    reset_options=("first",),
    check=_check,
    draw=_draw,
)


class PlainCounter(gym.Env[Any, Any]):
    """The rules of `COUNTER` as a scalar environment of Gymnasium, with which tests compare it."""

    observation_space = Box(0.0, np.inf, (1,))
    action_space = Discrete(10)

    def __init__(self, maximum: float) -> None:
        self.maximum, self.count = maximum, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.array([self.count], np.float32), float(action), self.count >= self.maximum, False, {}


class Mixed(NamedTuple):
    level: float
    score: int
    lit: bool


class MixedParams(NamedTuple):
    noise: float = 1.0
    bonus: int = 0
    dark: bool = False


def _mixed_reset(key: Key, p: MixedParams) -> Mixed:
    return Mixed(uniform(key, 0, -1.0, 1.0), randint(key, 1, 0, 1000), False)


def _mixed_step(s: Mixed, action: tuple[int, int], key: Key, p: MixedParams) -> tuple[Mixed, float, bool]:
    level = 0.5 * s.level + p.noise * uniform(key, 0, -1.0, 1.0) + np.float32(action[0])
    lit = randint(key, 1, 0, 2) == 1 and not p.dark
    return Mixed(level, s.score + action[1] + p.bonus, lit), level, randint(key, 2, 0, 8) == 0


# Fields of all three types, two discrete actions, and random numbers in every step; one step in eight terminates the episode.
MIXED = SingleAgentEnv(
    state=Mixed,
    params=MixedParams(),
    reset=_mixed_reset,
    step=_mixed_step,
    observe=lambda s, p: (s.level, np.float32(s.score), 1.0 if s.lit else 0.0),
    spaces=lambda p: (Box(-np.inf, np.inf, (3,)), MultiDiscrete([3, 4])),
    max_episode_steps=6,
)

register("tests/Counter-v0", COUNTER)
register("tests/Mixed-v0", MIXED)


def make(id: str, num_envs: int, **kwargs: Any) -> Any:
    """Returns an environment with NumPy arrays, on a GPU with CuPy arrays.

    Counters store their maximum per env, so that all tests share one kernel.
    """
    if id == "tests/Counter-v0" and "per_env" not in kwargs and isinstance(num_envs, int):
        maximum = kwargs.get("maximum", COUNTER.params.maximum)
        kwargs |= {"per_env": ("maximum",), "maximum": (maximum,) * num_envs if isinstance(maximum, float) else maximum}
    output = "cupy" if str(kwargs.get("device", "cpu")).startswith("cuda") else "numpy"
    return gym.make_vec(id, num_envs=num_envs, **{"device": "cpu", "output": output, **kwargs})


@cache
def shared(id: str, num_envs: int, **kwargs: Any) -> Any:
    """Returns the same environment as `make`, created once.

    Tests share it, so they must begin with a seeded reset, and must not change parameters or close the environment.
    """
    return make(id, num_envs, **kwargs)
