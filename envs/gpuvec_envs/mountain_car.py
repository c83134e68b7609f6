"""MountainCar: an underpowered car must swing up on both sides of a valley to leave it.

Observation: position and velocity, which are the state.
Action: the force, 0 to the left, 1 none, 2 to the right.
Reward: -1 in every step, including the one that reaches the goal.
Termination: the car is at `goal_position` or beyond, at `goal_velocity` or faster.
Parameters: a reset draws the position from [low, high); the velocity is 0. The wall at `min_position` stops the car.
Source: Moore (1990), "Efficient memory-based learning for robot control".
"""

from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, sincos, uniform
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_ordered, require_positive


class State(NamedTuple):
    x: float  # position; the valley's floor is at -pi / 6
    v: float  # velocity [1/step]


class Params(NamedTuple):
    goal_velocity: float = 0.0  # [1/step]
    goal_position: float = 0.5
    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07  # [1/step]
    force: float = 0.001  # per mass [1/step^2]
    gravity: float = 0.0025  # [1/step^2]
    low: float = -0.6  # bounds of the first position
    high: float = -0.4


def reset(key: Key, p: Params) -> State:
    return State(uniform(key, 0, p.low, p.high), 0.0)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    _, cos = sincos(3.0 * s.x)
    force = p.force if action == 2 else (-p.force if action == 0 else 0.0)
    v = min(max(s.v + force - p.gravity * cos, -p.max_speed), p.max_speed)
    x = min(max(s.x + v, p.min_position), p.max_position)
    if x == p.min_position and v < 0.0:
        v = 0.0
    return State(x, v), -1.0, x >= p.goal_position and v >= p.goal_velocity


def observe(s: State, p: Params) -> tuple[float, float]:
    return s.x, s.v


def spaces(p: Params) -> tuple[Box, Discrete]:
    low = np.array([p.min_position, -p.max_speed], np.float32)
    high = np.array([p.max_position, p.max_speed], np.float32)
    return Box(low, high), Discrete(3)


def check(p: Params) -> None:
    require_positive(p, "max_speed")
    require_ordered(p, "min_position", "max_position")
    require_ordered(p, "low", "high")


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    return [("goal", "the car is at the flag", ())] if s.x >= p.goal_position > before.x else []


ENV = SingleAgentEnv(
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    spaces=spaces,
    max_episode_steps=200,
    reward_threshold=-110.0,
    reset_options=("low", "high"),
    check=check,
    cuda_c="cuda_c/mountain_car.cu",
    draw=pictures.mountain_car,
    events=events,
    feature_names=("position", "velocity"),
    action_names=("left", "no force", "right"),
)
