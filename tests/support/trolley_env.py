"""A trolley on a track, and several that follow each other past cells of grass.

Their functions use tables, a tuple, fields, integers, loops and draws that matter late in an episode. Tests of `check_env`
replace lines of this file by faults that occur only after many steps.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Floats, Ints, MultiAgentEnv, Observation, SingleAgentEnv, assign, count_of, each, randint, uniform

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
    num_agents: int = 3  # of several trolleys, as all that follows
    memory_size: int = 8
    rows: int = 2
    columns: int = 2


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


TROLLEY = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=220)


class Trolleys(NamedTuple):
    x: Floats  # [m]
    v: Floats  # [m/s]
    heat: Floats  # from 0 to 1
    age: Ints  # steps since the reset
    leader: Ints  # the agent that this one follows, or -1
    memory: Annotated[Floats, "agents", "memory_size"]  # the last positions [m]
    grass: Annotated[Floats, "cells"]  # from 0 to 1
    visits: Annotated[Ints, "sections"]  # the followers in each section of the episode
    day: int
    num_followers: int


def place(i, s, key, p):
    s.x[i] = uniform(key, 3 * i, -1.0, 1.0)
    s.v[i] = 0.0
    s.heat[i] = 0.0
    s.age[i] = 0
    s.leader[i] = -1
    for k in range(p.memory_size):
        s.memory[i, k] = 0.0


def sow(cell, s, key, p):
    s.grass[cell] = 0.5


def next_day(s, key, p):
    return s.day + 1


def grow(cell, s, key, p):
    y, x = cell
    growth = p.slopes[min(s.day // p.section, NUM_SECTIONS - 1)] + 0.001 / np.float32(max(200 - s.day, 1))
    if s.day > 190:
        growth += uniform(key, p.columns * y + x, 0.0, 0.01)
    s.grass[cell] = 0.9 * s.grass[cell] + 0.1 * growth


def remember(i, s, action, key, p):
    s.age[i] += 1
    s.memory[i, s.age[i] % p.memory_size] = s.x[i]
    s.heat[i] = 0.99 * s.heat[i] + 0.01 * math.sqrt(max(1.0 - np.float32(s.age[i]) / 200.0, 0.0))


def accelerate(i, s, action, key, p):
    age = s.age[i]
    slope = p.slopes[min(age // p.section, NUM_SECTIONS - 1)]
    brake = load_at(age) + share_at(age)
    gust = uniform(key, 3 * i, -0.01, 0.01)
    if age > 190:
        gust += 0.01 * np.float32(randint(key, 3 * i + 1, 0, max(210 - age, 1)))
    thrust = 0.1 if action == 1 else -0.1
    s.v[i] = 0.8 * s.v[i] + thrust + slope - 0.001 * brake + gust - 0.0001 * np.float32(num_digits(age))


def follow(i, s, action, key, p):
    s.leader[i] = (i + 1) % p.num_agents if action == 1 else -1
    pull = 0.0
    if s.leader[i] >= 0:
        pull = 0.1 * s.v[s.leader[i]]
    s.x[i] = min(max(s.x[i] + s.v[i] + pull, -REACH), REACH)


def is_follower(i, s, p):
    return s.leader[i] >= 0


def section_of(i, s, p):
    number = s.age[i] // p.section
    return min(number, NUM_SECTIONS - 1)


def reward(i, s, t, p):
    return 1.0 - abs(s.x[i]) / REACH


def terminated(i, s, p):
    return s.age[i] >= p.horizon


def observe_track(i, s, t, p):
    return s.x[i], s.v[i], s.heat[i], np.float32(s.num_followers)


def spaces_of_several(p):
    high = np.array([REACH, np.inf, 1.0, p.num_agents], np.float32)
    return Box(-high, high), Discrete(2)


TROLLEYS = MultiAgentEnv(
    state=Trolleys,
    params=Params(),
    spaces=spaces_of_several,
    agents=lambda p: p.num_agents,
    sets=lambda p: {"cells": (p.rows, p.columns), "sections": NUM_SECTIONS},
    reset=(place, each("cells", sow), count_of("visits", is_follower, at=section_of)),
    phases=(
        remember,
        accelerate,
        follow,
        count_of("num_followers", is_follower),
        count_of("visits", is_follower, at=section_of),
        assign("day", next_day),
        each("cells", grow),
    ),
    reward=reward,
    terminated=terminated,
    observation=lambda p: Observation(observe_track),
    tables=lambda p: {"slopes": SLOPES},
    structural=("num_agents", "memory_size", "rows", "columns"),
    max_episode_steps=220,
)
