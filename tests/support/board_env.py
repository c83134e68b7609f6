"""A cursor that paints a board: arrays in the state of one agent, an image, an action mask, and counters late in an episode.

Tests of `check_env` replace parts of this file by faults that occur only after many steps.
"""

from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Bools, Floats, SingleAgentEnv, randint, uniform

STAY, RIGHT, DOWN = 0, 1, 2


class State(NamedTuple):
    y: int
    x: int
    age: int  # steps since the reset
    painted: Annotated[Bools, "world", "height", "width"]
    wetness: Annotated[Floats, "world", "height", "width"]  # from 0 to 1


class Params(NamedTuple):
    height: int = 3
    width: int = 4
    horizon: int = 110  # steps


def reset(s, key, p):
    for y in range(p.height):
        for x in range(p.width):
            s.painted[y, x] = False
            s.wetness[y, x] = 0.0
    return State(randint(key, 0, 0, p.height), randint(key, 1, 0, p.width), 0, s.painted, s.wetness)


def step(s, action, key, p):
    age = s.age + 1
    y = (s.y + 1) % p.height if action == DOWN else s.y
    x = (s.x + 1) % p.width if action == RIGHT else s.x
    s.painted[y, x] = uniform(key, 0, 0.0, 1.0) < 0.5
    s.wetness[y, x] = 0.5 * s.wetness[y, x] + 0.5 / np.float32(max(100 - age, 2))
    return State(y, x, age, s.painted, s.wetness), s.wetness[y, x], age >= p.horizon


def allowed(action, s, p):
    return action == STAY or s.age % 4 != 3


def observe(cell, s, p):
    y, x = cell
    return s.painted[cell], np.float32(min(s.age, 100)) / 100.0 if y == s.y and x == s.x else 0.0


def spaces(p):
    return Box(0.0, 1.0, (2, p.height, p.width), np.float32), Discrete(3)


ENV = SingleAgentEnv(
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    spaces=spaces,
    allowed=allowed,
    structural=("height", "width"),
    max_episode_steps=120,
)
