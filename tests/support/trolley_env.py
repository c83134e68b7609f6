"""A trolley on a track, whose functions use a table, a tuple, integers, a loop and draws that matter late in an episode.

Tests of `check_env` replace lines of this file by faults that occur only after many steps.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import SingleAgentEnv, randint, uniform

REACH = 4.0  # [m]
NUM_SECTIONS = 20
SLOPES = np.linspace(-0.02, 0.02, NUM_SECTIONS).astype(np.float32)  # the acceleration in each section of an episode [m/s]
THRUSTS = (0.05, 0.1, 0.15, 0.2)  # the acceleration in each gear [m/s]


class State(NamedTuple):
    x: float  # [m]
    v: float  # [m/s]
    heat: float  # from 0 to 1
    age: int  # steps since the reset
    gear: int


class Params(NamedTuple):
    horizon: int = 210  # steps
    section: int = 10  # steps


def reset(key, p):
    return State(uniform(key, 0, -1.0, 1.0), 0.0, 0.0, 0, randint(key, 1, 0, 4))


def slope_at(age, p):
    return SLOPES[min(age // p.section, NUM_SECTIONS - 1)]


def remaining_slope(age, p):
    return SLOPES[max(NUM_SECTIONS - 1 - age // p.section, 0)]


def thrust_of(gear, age):
    return THRUSTS[(gear + age // 64) % 4]


def load_at(age):
    return np.float32((1 << min(age // 8, 20)) & 255) / 255.0


def share_at(age):
    return np.float32(200 // max(200 - age, 1)) / 200.0


def round_at(age):
    return np.float32(7 % max(205 - age, 1)) / 7.0


def num_digits(age):
    rest, count = age, 0
    while rest > 0:
        rest = rest // 10
        count += 1
    return count


def gust(key, age):
    width = 0.01 if age < 180 else 0.02
    return uniform(key, 0, -width, width)


def next_gear(gear, age, key):
    if age > 190:
        return randint(key, 2, 0, max(210 - age, 1)) % 4
    return (gear + 1) % 4 if uniform(key, 3, 0.0, 1.0) < 0.1 else gear


def next_heat(heat, age):
    return 0.99 * heat + 0.01 * math.sqrt(max(1.0 - np.float32(age) / 200.0, 0.0))


def step(s, action, key, p):
    age = s.age + 1
    slopes = slope_at(age, p) + remaining_slope(age, p)
    brake = 0.001 * (load_at(age) + share_at(age) + round_at(age)) + 0.0001 * np.float32(num_digits(age))
    thrust = thrust_of(s.gear, age) if action == 1 else -thrust_of(s.gear, age)
    v = 0.8 * s.v + thrust + slopes - brake + gust(key, age)
    x = min(max(s.x + v, -REACH), REACH)
    reward = 1.0 - abs(x) / REACH
    return State(x, v, next_heat(s.heat, age), age, next_gear(s.gear, age, key)), reward, age >= p.horizon


def observe(s, p):
    return s.x, s.v, s.heat


def spaces(p):
    high = np.array([REACH, np.inf, 1.0], np.float32)
    return Box(-high, high), Discrete(2)


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=220)
