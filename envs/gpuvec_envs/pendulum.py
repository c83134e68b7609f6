"""Pendulum: a motor that is too weak to lift a pendulum directly must swing it up and keep it upright.

Observation: cosine and sine of the angle from upright, and the angular velocity.
Action: the torque [N m], clipped to [-max_torque, max_torque].
Reward: -(angle^2 + 0.1 velocity^2 + 0.001 torque^2) of the state before the step, with the angle in [-pi, pi].
Termination: never.
Parameters: a reset draws the angle from [-x_init, x_init) and the velocity from [-y_init, y_init).
Source: Gymnasium's Pendulum-v1; a uniform rod on a pivot, semi-implicit Euler steps.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

from gpuvec import Key, SingleAgentEnv, sincos, uniform, wrap
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_not_negative, require_positive


class State(NamedTuple):
    theta: float  # angle from upright, not wrapped [rad]
    theta_dot: float  # [rad/s]


class Params(NamedTuple):
    g: float = 10.0  # gravity [m/s^2]
    mass: float = 1.0  # of the rod [kg]
    length: float = 1.0  # of the rod [m]
    max_torque: float = 2.0  # [N m]
    max_speed: float = 8.0  # [rad/s]
    dt: float = 0.05  # [s]
    x_init: float = math.pi  # bound of the first angle [rad]
    y_init: float = 1.0  # bound of the first velocity [rad/s]


def reset(key: Key, p: Params) -> State:
    return State(uniform(key, 0, -p.x_init, p.x_init), uniform(key, 1, -p.y_init, p.y_init))


def step(s: State, action: tuple[float], key: Key, p: Params) -> tuple[State, float, bool]:
    angle = wrap(s.theta)
    sin, _ = sincos(s.theta)
    torque = min(max(action[0], -p.max_torque), p.max_torque)
    cost = angle**2 + 0.1 * s.theta_dot**2 + 0.001 * torque**2

    theta_acc = 1.5 * p.g / p.length * sin + 3.0 / (p.mass * p.length**2) * torque
    theta_dot = min(max(s.theta_dot + p.dt * theta_acc, -p.max_speed), p.max_speed)
    return State(s.theta + p.dt * theta_dot, theta_dot), -cost, False


def observe(s: State, p: Params) -> tuple[float, float, float]:
    sin, cos = sincos(s.theta)
    return cos, sin, s.theta_dot


def spaces(p: Params) -> tuple[Box, Box]:
    high = np.array([1.0, 1.0, p.max_speed], np.float32)
    return Box(-high, high), Box(-p.max_torque, p.max_torque, (1,))


def field_ranges(p: Params) -> dict[str, tuple[float, float]]:
    return {"theta": (-1e6, 1e6), "theta_dot": (-1e6, 1e6)}  # whose squares are added


def check(p: Params) -> None:
    require_positive(p, "mass", "length", "max_torque", "max_speed", "dt")
    require_not_negative(p, "x_init", "y_init")


def is_upright(s: State) -> bool:
    """Returns whether the pendulum stands: it is within 0.1 rad of upright and turns by less than 0.5 rad/s."""
    return abs(math.remainder(s.theta, 2.0 * math.pi)) < 0.1 and abs(s.theta_dot) < 0.5


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    if is_upright(s) == is_upright(before):
        return []
    return [("goal", "the pendulum stands upright", ()) if is_upright(s) else ("loss", "the pendulum leaves upright", ())]


ENV = SingleAgentEnv(
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    spaces=spaces,
    max_episode_steps=200,
    reset_options=("x_init", "y_init"),
    check=check,
    field_ranges=field_ranges,
    cuda_c="cuda_c/pendulum.cu",
    draw=pictures.pendulum,
    events=events,
    feature_names=("cos of angle", "sin of angle", "velocity"),
    action_names=("torque",),
)
