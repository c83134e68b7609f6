"""Sources of modules with small environments; tests change a line and write them to a file."""

DRIFT = """
from typing import NamedTuple
import math
import numpy as np
from gymnasium.spaces import Box, Discrete
import gpuvec
from gpuvec import SingleAgentEnv, uniform

class State(NamedTuple):
    x: float
    v: float
    age: float  # in tenths of an episode
    turns: int

class Params(NamedTuple):
    push: float = 0.1
    horizon: int = 5

def reset(key, p):
    return State(uniform(key, 0, -1.0, 1.0), uniform(key, 1, -0.1, 0.1), 0.0, 0)

def step(s, action, key, p):
    v = 0.9 * s.v + (p.push if action == 1 else -p.push) + 0.01 * uniform(key, 0, -1.0, 1.0)
    x, age, turns = s.x + v, s.age + 0.1, s.turns + 1
    return State(x, v, age, turns), 1.0 - abs(x), turns >= p.horizon

def observe(s, p):
    return s.x, s.v

def spaces(p):
    return Box(-np.inf, np.inf, (2,), np.float32), Discrete(2)

ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, max_episode_steps=100)
gpuvec.register(f"tests/{__name__}-v0", ENV)
"""
RING = """
from typing import NamedTuple
import numpy as np
from gymnasium.spaces import Box, Discrete
import gpuvec
from gpuvec import MultiAgentEnv, Floats, Observation, uniform

class State(NamedTuple):
    x: Floats
    last: Floats
    gained: Floats  # in this episode

class Params(NamedTuple):
    num_agents: int = 4

def reset(i, s, key, p):
    s.x[i] = uniform(key, i, -1.0, 1.0)
    s.last[i] = 0.0
    s.gained[i] = 0.0

def keep(i, s, action, key, p):
    s.last[i] = s.x[i]

def move(i, s, action, key, p):
    s.x[i] = s.last[(i + 1) % p.num_agents]
    s.gained[i] += 1.0

def reward(i, s, t, p):
    return s.gained[i]

def terminated(i, s, p):
    return False

def observation(p):
    return Observation(lambda i, s, t, p: (s.x[i],))

def spaces(p):
    return Box(-1.0, 1.0, (1,), np.float32), Discrete(2)

ENV = MultiAgentEnv(
    state=State, params=Params(), spaces=spaces, agents=lambda p: p.num_agents, reset=reset, phases=(keep, move), reward=reward,
    terminated=terminated, observation=observation, structural=("num_agents",), max_episode_steps=100,
)
gpuvec.register(f"tests/{__name__}-v0", ENV)
"""
