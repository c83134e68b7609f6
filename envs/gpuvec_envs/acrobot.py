"""Acrobot: two hanging links with a motor only in the joint between them must swing the tip above a line.

Observation: cosine and sine of the first link's angle from hanging, cosine and sine of the second link's angle from
    the first, and the two angular velocities.
Action: the torque on the joint between the links, 0 is -`torque`, 1 none, 2 is `torque`.
Reward: -1 in every step, 0 in the one that terminates.
Termination: the tip is higher than `goal_height` above the pivot.
Parameters: a reset draws all four variables from [low, high).
Source: Sutton (1996), "Generalization in reinforcement learning: successful examples using sparse coarse coding";
    equations as in Sutton and Barto (2018), "Reinforcement learning: an introduction"; one fourth-order Runge-Kutta
    step with constant torque.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, sincos, uniform, wrap
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_ordered, require_positive


class State(NamedTuple):
    theta1: float  # angle of the first link from hanging [rad]
    theta2: float  # angle of the second link from the first [rad]
    theta1_dot: float  # [rad/s]
    theta2_dot: float  # [rad/s]


class Params(NamedTuple):
    gravity: float = 9.8  # [m/s^2]
    length1: float = 1.0  # of the links [m]
    length2: float = 1.0
    mass1: float = 1.0  # of the links [kg]
    mass2: float = 1.0
    com1: float = 0.5  # from a link's upper end to its centre of mass [m]
    com2: float = 0.5
    inertia: float = 1.0  # of each link about its centre of mass [kg m^2]
    torque: float = 1.0  # [N m]
    dt: float = 0.2  # [s]
    max_speed1: float = 4.0 * math.pi  # [rad/s]
    max_speed2: float = 9.0 * math.pi
    goal_height: float = 1.0  # of the tip above the pivot [m]
    low: float = -0.1  # bounds of the first state, in the units of the state
    high: float = 0.1


def reset(key: Key, p: Params) -> State:
    return State(
        uniform(key, 0, p.low, p.high),
        uniform(key, 1, p.low, p.high),
        uniform(key, 2, p.low, p.high),
        uniform(key, 3, p.low, p.high),
    )


def derivative(s: State, torque: float, p: Params) -> State:
    """Returns the time derivative of the state."""
    (sin1, cos1), (sin2, cos2) = sincos(s.theta1), sincos(s.theta2)
    w1, w2 = s.theta1_dot, s.theta2_dot
    coupling = p.mass2 * p.length1 * p.com2
    inertia2 = p.mass2 * p.com2**2 + p.inertia  # of the second link about the joint

    d1 = p.mass1 * p.com1**2 + p.mass2 * p.length1**2 + p.inertia + inertia2 + 2.0 * coupling * cos2
    d2 = inertia2 + coupling * cos2
    phi2 = p.mass2 * p.com2 * p.gravity * (sin1 * cos2 + cos1 * sin2)
    phi1 = (p.mass1 * p.com1 + p.mass2 * p.length1) * p.gravity * sin1 + phi2 - coupling * w2 * (w2 + 2.0 * w1) * sin2
    # The accelerations solve d1 a1 + d2 a2 = rhs1 and d2 a1 + inertia2 a2 = rhs2, whose determinant is never close to 0.
    inverse_determinant = 1.0 / (d1 * inertia2 - d2 * d2)
    rhs1, rhs2 = -phi1, torque - coupling * w1**2 * sin2 - phi2
    return State(w1, w2, (inertia2 * rhs1 - d2 * rhs2) * inverse_determinant, (d1 * rhs2 - d2 * rhs1) * inverse_determinant)


def advance(s: State, k: State, t: float) -> State:
    """Returns the state after time `t` with the constant derivative `k`."""
    return State(
        s.theta1 + t * k.theta1,
        s.theta2 + t * k.theta2,
        s.theta1_dot + t * k.theta1_dot,
        s.theta2_dot + t * k.theta2_dot,
    )


def runge_kutta(s: State, torque: float, p: Params) -> State:
    """Returns the state after `dt`, by the classical Runge-Kutta method of order four."""
    k1 = derivative(s, torque, p)
    k2 = derivative(advance(s, k1, 0.5 * p.dt), torque, p)
    total = advance(k1, k2, 2.0)
    k3 = derivative(advance(s, k2, 0.5 * p.dt), torque, p)
    total = advance(total, k3, 2.0)
    k4 = derivative(advance(s, k3, p.dt), torque, p)
    return advance(s, advance(total, k4, 1.0), p.dt / 6.0)


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    s = runge_kutta(s, p.torque if action == 2 else (-p.torque if action == 0 else 0.0), p)
    s = State(
        wrap(s.theta1),
        wrap(s.theta2),
        min(max(s.theta1_dot, -p.max_speed1), p.max_speed1),
        min(max(s.theta2_dot, -p.max_speed2), p.max_speed2),
    )
    (sin1, cos1), (sin2, cos2) = sincos(s.theta1), sincos(s.theta2)
    terminated = -p.length1 * cos1 - p.length2 * (cos1 * cos2 - sin1 * sin2) > p.goal_height
    return s, 0.0 if terminated else -1.0, terminated


def observe(s: State, p: Params) -> tuple[float, float, float, float, float, float]:
    (sin1, cos1), (sin2, cos2) = sincos(s.theta1), sincos(s.theta2)
    return cos1, sin1, cos2, sin2, s.theta1_dot, s.theta2_dot


def spaces(p: Params) -> tuple[Box, Discrete]:
    high = np.array([1.0, 1.0, 1.0, 1.0, p.max_speed1, p.max_speed2], np.float32)
    return Box(-high, high), Discrete(3)


def field_ranges(p: Params) -> dict[str, tuple[float, float]]:
    # Beyond these the equations of motion overflow.
    return {"theta1": (-1e6, 1e6), "theta2": (-1e6, 1e6), "theta1_dot": (-1e3, 1e3), "theta2_dot": (-1e3, 1e3)}


def check(p: Params) -> None:
    require_positive(p, "length1", "length2", "mass1", "mass2", "com1", "com2", "inertia", "dt", "max_speed1", "max_speed2")
    require_ordered(p, "low", "high")


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    height = -p.length1 * math.cos(s.theta1) - p.length2 * math.cos(s.theta1 + s.theta2)
    return [("goal", "the tip is above the line", ())] if height > p.goal_height else []


ENV = SingleAgentEnv(
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    spaces=spaces,
    max_episode_steps=500,
    reward_threshold=-100.0,
    reset_options=("low", "high"),
    check=check,
    field_ranges=field_ranges,
    cuda_c="cuda_c/acrobot.cu",
    draw=pictures.acrobot,
    events=events,
    feature_names=("cos of angle 1", "sin of angle 1", "cos of angle 2", "sin of angle 2", "velocity 1", "velocity 2"),
    action_names=("torque -1", "no torque", "torque +1"),
    render_fps=15,
)
