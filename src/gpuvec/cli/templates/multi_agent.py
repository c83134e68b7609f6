"""MyGame: walkers in a square meadow look for each other, until nobody is alone.

Observation: of each of the nearest others how far it is in x and in y, as shares of the meadow's side; then the own place in
    the meadow and the share of the episode that is over.
Action: 0 stays, 1 and 2 walk along x, up and down, 3 and 4 along y; the meadow's edge stops a walker.
Reward: 1 for all in the step in which nobody is alone, and -0.01 in any other.
Termination: every walker has another within `reach`.
Parameters: those of `Params`.
"""

import math
from typing import Annotated, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

import gpuvec
from gpuvec import MultiAgentEnv, Floats, Ints, Key, NearestNeighbors, Observation, Time, all_of, uniform

INFINITY = math.inf


class State(NamedTuple):
    """A meadow with its walkers; a field has an element for each of them, or one for the meadow."""

    x: Floats  # [m]
    y: Floats  # [m]
    nearest: Annotated[Ints, "num_seen", NearestNeighbors]  # the walkers that one sees, nearest first
    met: bool  # whether nobody is alone


class Params(NamedTuple):
    """What `make_vec` takes as keyword arguments, with its defaults."""

    num_agents: int = 4
    num_seen: int = 2  # how many others a walker sees
    side: float = 10.0  # of the meadow [m]
    pace: float = 0.5  # [m/step]
    reach: float = 1.0  # within which two have met [m]


def agents(p: Params) -> int:
    """How many walk."""
    return p.num_agents


def reset(i: int, s: State, key: Key, p: Params) -> None:
    """Writes walker i's first state; it draws with numbers of its own."""
    s.x[i], s.y[i] = uniform(key, 2 * i, 0.0, p.side), uniform(key, 2 * i + 1, 0.0, p.side)


def walk(i: int, s: State, action: int, key: Key, p: Params) -> None:
    """A phase: it writes walker i's elements, and reads nobody else's of a field that it writes."""
    x = s.x[i] + (p.pace if action == 1 else -p.pace if action == 2 else 0.0)
    y = s.y[i] + (p.pace if action == 3 else -p.pace if action == 4 else 0.0)
    s.x[i], s.y[i] = min(max(x, 0.0), p.side), min(max(y, 0.0), p.side)


def distance(i: int, j: int, s: State, p: Params) -> float:
    """How far j is from i, squared; infinite for who is not to be seen."""
    if i == j:
        return INFINITY
    x, y = s.x[i] - s.x[j], s.y[i] - s.y[j]
    return x * x + y * y


def in_company(i: int, s: State, p: Params) -> bool:
    """Whether another is within reach of i."""
    least = INFINITY
    for j in range(p.num_agents):
        least = min(least, distance(i, j, s, p))
    return least < p.reach * p.reach


def reward(i: int, s: State, t: Time, p: Params) -> float:
    """Of walker i, after all phases."""
    return 1.0 if s.met else -0.01


def terminated(i: int, s: State, p: Params) -> bool:
    """A vote: the episode ends when all agree."""
    return s.met


def other_features(i: int, slot: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    """What i sees of the one in that slot; -1 stands for nobody."""
    j = s.nearest[i, slot]
    if j < 0:
        return 0.0, 0.0
    return (s.x[j] - s.x[i]) / p.side, (s.y[j] - s.y[i]) / p.side


def itself(i: int, s: State, t: Time, p: Params) -> tuple[float, float, float]:
    """What i knows without looking."""
    return s.x[i] / p.side, s.y[i] / p.side, np.float32(t.step) / np.float32(t.limit)


def observation(p: Params) -> Observation:
    """What walkers observe."""
    nearest = NearestNeighbors("nearest", distance, position=("x", "y"), squared=True)  # (x, y) bounds the squared distance
    return Observation(itself, other_features, p.num_seen, nearest)


def spaces(p: Params) -> tuple[Box, Discrete]:
    """(observations, actions) of one walker."""
    return Box(-1.0, 1.0, (2 * p.num_seen + 3,), np.float32), Discrete(5)


def check(p: Params) -> None:
    """Raises ValueError for parameters that make no sense together."""
    if not 1 <= p.num_seen < p.num_agents:
        raise ValueError(f"num_seen is {p.num_seen}; it must be from 1 to {p.num_agents - 1}, the number of others.")


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    reset=reset,
    phases=(walk, all_of("met", in_company)),
    reward=reward,
    terminated=terminated,
    observation=observation,
    structural=("num_agents", "num_seen"),
    check=check,
    max_episode_steps=100,
)
gpuvec.register("my_game/MyGame-v0", ENV)
