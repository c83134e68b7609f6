"""MyGame: walkers in a square meadow search for each other, until each has another one nearby.

Observation: for each of the nearest other walkers the differences in x and in y, as fractions of the side length of the meadow;
    then the walker's own position as fractions of the side length, and the fraction of the episode that has passed.
Action: 0 stays, 1 and 2 increase and decrease x, 3 and 4 increase and decrease y. The edge of the meadow stops a walker.
Reward: 1 for each walker in the step in which the episode terminates, and -0.01 in all other steps.
Termination: every walker has another one within `meeting_distance`.
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
    """The meadow. A field has an element for each walker, or is one value of the meadow."""

    x: Floats  # the position of each walker [m]
    y: Floats  # [m]
    nearest: Annotated[Ints, "agents", "num_neighbors", NearestNeighbors]  # the walkers that each observes, nearest first
    all_met: bool  # whether each walker has another one nearby


class Params(NamedTuple):
    """The parameters with their defaults, which `make_vec` takes as keyword arguments."""

    num_agents: int = 4
    num_neighbors: int = 2  # the number of others that a walker observes
    side_length: float = 10.0  # of the meadow [m]
    stride: float = 0.5  # the distance that a walker moves in a step [m]
    meeting_distance: float = 1.0  # [m]


def agents(p: Params) -> int:
    """Returns the number of walkers."""
    return p.num_agents


def reset(i: int, s: State, key: Key, p: Params) -> None:
    """Writes the first state of walker i. All walkers draw with the same key, so each has its own numbers."""
    s.x[i], s.y[i] = uniform(key, 2 * i, 0.0, p.side_length), uniform(key, 2 * i + 1, 0.0, p.side_length)


def walk(i: int, s: State, action: int, key: Key, p: Params) -> None:
    """Moves walker i. A phase writes only elements of walker i, and reads no other elements of the fields that it writes."""
    x = s.x[i] + (p.stride if action == 1 else -p.stride if action == 2 else 0.0)
    y = s.y[i] + (p.stride if action == 3 else -p.stride if action == 4 else 0.0)
    s.x[i], s.y[i] = min(max(x, 0.0), p.side_length), min(max(y, 0.0), p.side_length)


def squared_distance(i: int, j: int, s: State, p: Params) -> float:
    """Returns the squared distance of two walkers, infinite for the walker itself, which the search must not find."""
    if i == j:
        return INFINITY
    x, y = s.x[i] - s.x[j], s.y[i] - s.y[j]
    return x * x + y * y


def has_met(i: int, s: State, p: Params) -> bool:
    """Returns whether another walker is within the meeting distance of walker i."""
    minimum = INFINITY
    for j in range(p.num_agents):
        minimum = min(minimum, squared_distance(i, j, s, p))
    return minimum < p.meeting_distance * p.meeting_distance


def reward(i: int, s: State, t: Time, p: Params) -> float:
    """Returns the reward of walker i, after all phases."""
    return 1.0 if s.all_met else -0.01


def terminated(i: int, s: State, p: Params) -> bool:
    """Returns the vote of walker i. The episode ends if all walkers vote for it."""
    return s.all_met


def other_features(i: int, slot: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    """Returns what walker i observes of its neighbor with number `slot`, zeros if there is none."""
    j = s.nearest[i, slot]
    if j < 0:
        return 0.0, 0.0
    return (s.x[j] - s.x[i]) / p.side_length, (s.y[j] - s.y[i]) / p.side_length


def self_features(i: int, s: State, t: Time, p: Params) -> tuple[float, float, float]:
    """Returns what walker i observes of itself, and the time."""
    return s.x[i] / p.side_length, s.y[i] / p.side_length, np.float32(t.step) / np.float32(t.limit)


def observation(p: Params) -> Observation:
    """Returns what walkers observe."""
    # The differences in x and in y bound the squared distance, so that a search among many walkers skips distant ones.
    nearest = NearestNeighbors("nearest", squared_distance, position=("x", "y"), squared=True)
    return Observation(self_features, other_features, p.num_neighbors, nearest)


def spaces(p: Params) -> tuple[Box, Discrete]:
    """Returns the observation space and the action space of one walker."""
    return Box(-1.0, 1.0, (2 * p.num_neighbors + 3,), np.float32), Discrete(5)


def check(p: Params) -> None:
    """Raises ValueError for parameters that make no sense together."""
    if not 1 <= p.num_neighbors < p.num_agents:
        raise ValueError(f"num_neighbors is {p.num_neighbors}; it must be from 1 to {p.num_agents - 1}, the number of others.")


ENV = MultiAgentEnv(
    state=State,
    params=Params(),
    spaces=spaces,
    agents=agents,
    reset=reset,
    phases=(walk, all_of("all_met", has_met)),
    reward=reward,
    terminated=terminated,
    observation=observation,
    structural=("num_agents", "num_neighbors"),
    check=check,
    max_episode_steps=100,
)
gpuvec.register("my_game/MyGame-v0", ENV)
