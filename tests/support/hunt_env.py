"""Hunters and prey on a line, with a search, roles, a table, random numbers, a count, and rewards that depend on other agents.

Tests of `check_env` replace lines of this file by wrong ones.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Bools, Floats, Ints, MultiAgentEnv, NearestNeighbors, Observation, count_of, normal, uniform

HUNTER = 0
INF = math.inf


class State(NamedTuple):
    x: Floats  # [m]
    v: Floats  # [m/s]
    alive: Bools
    hunter: Ints  # the hunter that catches the agent in this step, or -1
    score: Floats  # of this step
    role: Ints
    agents_by_role: Ints
    neighbors: Annotated[Ints, "agents", "num_observed", NearestNeighbors]
    prey: int  # active ones


class Params(NamedTuple):
    hunters: int = 2
    runners: int = 3
    num_observed: int = 2
    length: float = 10.0  # [m]
    catch_distance: float = 0.5  # [m]
    noise: float = 0.01  # [m/s]


def reset(i, s, key, p):
    s.x[i] = uniform(key, 2 * i, 0.0, p.length)
    s.v[i] = uniform(key, 2 * i + 1, -0.1, 0.1)
    s.alive[i] = True
    s.hunter[i] = -1
    s.score[i] = 0.0


def move(i, s, action, key, p):
    v = 0.8 * s.v[i] + p.push[action] + p.noise * normal(key, 2 * i)
    s.v[i] = v
    s.x[i] = min(max(s.x[i] + v, 0.0), p.length)


def catch(i, s, action, key, p):
    s.hunter[i] = -1
    if s.role[i] != HUNTER and s.alive[i]:
        nearest = p.catch_distance
        for k in range(p.hunters):
            distance_to_hunter = abs(s.x[s.agents_by_role[k]] - s.x[i])
            if distance_to_hunter < nearest:
                nearest = distance_to_hunter
                s.hunter[i] = s.agents_by_role[k]


def leave(i, s, action, key, p):
    if s.hunter[i] >= 0:
        s.alive[i] = False


def gather(i, s, action, key, p):
    s.score[i] = 0.0 if s.hunter[i] < 0 else -1.0
    for k in range(p.hunters, p.hunters + p.runners):
        if s.hunter[s.agents_by_role[k]] == i:
            s.score[i] += 1.0


def is_prey(i, s, p):
    return s.role[i] != HUNTER and s.alive[i]


def reward(i, s, t, p):
    return s.score[i]


def terminated(i, s, p):
    return s.prey == 0


def active(i, s, p):
    return s.alive[i]


def distance(i, j, s, p):
    if i == j or not s.alive[j]:
        return INF
    return abs(s.x[j] - s.x[i])


def mask(i, s, p):
    return s.alive[i]


def other_features(i, slot, s, t, p):
    j = s.neighbors[i, slot]
    if j < 0:
        return 0.0, 0.0
    return (s.x[j] - s.x[i]) / p.length, 1.0 if s.role[j] == HUNTER else 0.5


def observe(i, s, t, p):
    return s.x[i] / p.length, np.float32(t.step) / np.float32(t.limit), np.float32(s.prey)


def observation(p):
    return Observation(
        observe, other_features, p.num_observed, NearestNeighbors("neighbors", distance, mask, position=("x",), squared=False)
    )


def spaces(p):
    low = [-1.0] * p.num_observed + [0.0] * (p.num_observed + 3)
    high = [1.0] * (2 * p.num_observed + 2) + [p.runners]
    return Box(np.array(low, np.float32), np.array(high, np.float32)), Discrete(3)


def tables(p):
    return {"push": np.array([-0.3, 0.0, 0.3], np.float32)}


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    reset=reset,
    observation=observation,
    active=active,
    tables=tables,
    agents=lambda p: p.hunters + p.runners,
    phases=(move, catch, leave, gather, count_of("prey", is_prey)),
    reward=reward,
    terminated=terminated,
    roles=lambda p: {"hunter": p.hunters, "prey": p.runners},
    structural=("hunters", "runners", "num_observed"),
    max_episode_steps=100,
)
