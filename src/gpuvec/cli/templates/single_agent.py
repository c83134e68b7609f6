"""MyGame: a boat crosses to a buoy against a current that pulls at it in gusts, and has to stop there.

The river is three times as long as the buoy may be away, and a boat does not leave it.

Observation: the way to the buoy [m] and the boat's speed [m/s].
Action: 0 backs up, 1 drifts, 2 goes ahead.
Reward: -0.01 in a step, -0.05 with the engine on, and 1 for stopping at the buoy.
Termination: the boat has stopped at the buoy.
Parameters: those of `Params`.
"""

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

import gpuvec
from gpuvec import Key, SingleAgentEnv, uniform


class State(NamedTuple):
    """A boat and its buoy, on a line."""

    x: float  # where the boat is [m]
    v: float  # its speed [m/s]
    buoy: float  # where the buoy is [m]


class Params(NamedTuple):
    """What `make_vec` takes as keyword arguments, with its defaults."""

    thrust: float = 1.0  # [m/s^2]
    drag: float = 0.5  # [1/s]
    current: float = -0.2  # [m/s^2]
    gust: float = 0.1  # the most by which the current is stronger or weaker [m/s^2]
    top: float = 2.0  # the boat's speed at most [m/s]
    far: float = 5.0  # the buoy's distance at most [m]
    reach: float = 0.25  # how near counts as there [m], and how slow as stopped [m/s]
    dt: float = 0.1  # [s]


def reset(key: Key, p: Params) -> State:
    """The first state of an episode; each draw has a number of its own."""
    return State(0.0, 0.0, uniform(key, 0, 1.0, p.far))


def clip(x: float, low: float, high: float) -> float:
    """`x`, or the bound that it is beyond; functions call others, from any module."""
    return min(max(x, low), high)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    """(the next state, the reward, whether the boat has stopped at the buoy)."""
    engine = p.thrust if action == 2 else -p.thrust if action == 0 else 0.0
    pull = p.current + p.gust * uniform(key, 0, -1.0, 1.0)
    v = clip(s.v + p.dt * (engine + pull - p.drag * s.v), -p.top, p.top)
    x = clip(s.x + p.dt * v, -p.far, 2.0 * p.far)
    there = abs(s.buoy - x) < p.reach and abs(v) < p.reach
    cost = 0.01 if action == 1 else 0.05
    return State(x, v, s.buoy), (1.0 if there else 0.0) - cost, there


def observe(s: State, p: Params) -> tuple[float, float]:
    """What a policy sees."""
    return s.buoy - s.x, s.v


def spaces(p: Params) -> tuple[Box, Discrete]:
    """(observations, actions)."""
    high = np.array([2.0 * p.far, p.top], np.float32)
    return Box(-high, high), Discrete(3)


def check(p: Params) -> None:
    """Raises ValueError for parameters that make no sense together."""
    if not p.far > 1.0:
        raise ValueError(f"far is {p.far}; it must be greater than 1, the least distance of a buoy.")


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, check=check, max_episode_steps=200)
gpuvec.register("my_game/MyGame-v0", ENV)
