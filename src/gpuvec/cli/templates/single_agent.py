"""MyGame: a boat has to cross a river to a buoy and stop there, against a current with gusts.

The boat moves on a line. Its position is limited to -max_distance and 2 max_distance.

Observation: the distance from the boat to the buoy [m] and the speed of the boat [m/s].
Action: 0 accelerates backwards, 1 stops the engine, 2 accelerates forwards.
Reward: -0.01 in each step, -0.05 if the engine runs, and 1 for stopping at the buoy.
Termination: the boat has stopped at the buoy.
Parameters: those of `Params`.
"""

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

import gpuvec
from gpuvec import Key, SingleAgentEnv, uniform


class State(NamedTuple):
    """The boat and its buoy, on a line."""

    position: float  # of the boat [m]
    speed: float  # of the boat [m/s]
    buoy: float  # the position of the buoy [m]


class Params(NamedTuple):
    """The parameters with their defaults, which `make_vec` takes as keyword arguments."""

    thrust: float = 1.0  # the acceleration by the engine [m/s^2]
    drag: float = 0.5  # [1/s]
    current: float = -0.2  # the acceleration by the water [m/s^2]
    gust: float = 0.1  # the largest change of `current` in a step [m/s^2]
    max_speed: float = 2.0  # [m/s]
    max_distance: float = 5.0  # the largest distance of the buoy from the start [m]
    tolerance: float = 0.25  # the distance from the buoy [m] and the speed [m/s] below which the boat has stopped there
    dt: float = 0.1  # the duration of a step [s]


def reset(key: Key, p: Params) -> State:
    """Returns the first state of an episode. Each draw in a function needs its own number, here 0."""
    return State(0.0, 0.0, uniform(key, 0, 1.0, p.max_distance))


def clip(x: float, low: float, high: float) -> float:
    """Limits a number to [low, high]. Functions may call other functions, from any module."""
    return min(max(x, low), high)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    """Returns the next state, the reward, and whether the boat has stopped at the buoy."""
    engine = p.thrust if action == 2 else -p.thrust if action == 0 else 0.0
    water = p.current + p.gust * uniform(key, 0, -1.0, 1.0)
    speed = clip(s.speed + p.dt * (engine + water - p.drag * s.speed), -p.max_speed, p.max_speed)
    position = clip(s.position + p.dt * speed, -p.max_distance, 2.0 * p.max_distance)
    has_stopped = abs(s.buoy - position) < p.tolerance and abs(speed) < p.tolerance
    cost = 0.01 if action == 1 else 0.05
    return State(position, speed, s.buoy), (1.0 if has_stopped else 0.0) - cost, has_stopped


def observe(s: State, p: Params) -> tuple[float, float]:
    """Returns the observation of a state."""
    return s.buoy - s.position, s.speed


def spaces(p: Params) -> tuple[Box, Discrete]:
    """Returns the observation space and the action space."""
    high = np.array([2.0 * p.max_distance, p.max_speed], np.float32)
    return Box(-high, high), Discrete(3)


def check(p: Params) -> None:
    """Raises ValueError for parameters that make no sense together."""
    if not p.max_distance > 1.0:
        raise ValueError(f"max_distance is {p.max_distance}; it must be greater than 1, the smallest distance of the buoy.")


ENV = SingleAgentEnv(State, Params(), reset, step, observe, spaces, check=check, max_episode_steps=200)
gpuvec.register("my_game/MyGame-v0", ENV)
