"""CartPole: a cart moves so that the pole on it stays upright.

Observation: cart position and velocity, pole angle from upright and angular velocity, which are the state.
Action: the force on the cart, 0 to the left, 1 to the right.
Reward: 1 in every step, including the last one. With `sutton_barto_reward`, -1 in the step that terminates, else 0.
Termination: the cart is farther than `x_limit` from the centre, or the pole leans more than `theta_limit`.
Parameters: a reset draws all four variables from [low, high).
Source: Barto, Sutton and Anderson (1983), "Neuronlike adaptive elements that can solve difficult learning control
    problems"; equations without friction as in Florian (2007), "Correct equations for the dynamics of the cart-pole
    system"; explicit Euler steps.
"""

import math
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete

from gpuvec import Key, SingleAgentEnv, sincos, uniform
from gpuvec_envs import pictures
from gpuvec_envs.checks import require_ordered, require_positive


class State(NamedTuple):
    x: float  # position of the cart [m]
    x_dot: float  # [m/s]
    theta: float  # angle of the pole from upright [rad]
    theta_dot: float  # [rad/s]


class Params(NamedTuple):
    sutton_barto_reward: bool = False  # whether termination is penalised, instead of a reward in each step
    gravity: float = 9.8  # [m/s^2]
    cart_mass: float = 1.0  # [kg]
    pole_mass: float = 0.1  # [kg]
    half_length: float = 0.5  # of the pole [m]
    force: float = 10.0  # on the cart, to the left or to the right [N]
    dt: float = 0.02  # [s]
    x_limit: float = 2.4  # [m]
    theta_limit: float = math.radians(12.0)  # [rad]
    low: float = -0.05  # bounds of the first state, in the units of the state
    high: float = 0.05


def reset(key: Key, p: Params) -> State:
    return State(
        uniform(key, 0, p.low, p.high),
        uniform(key, 1, p.low, p.high),
        uniform(key, 2, p.low, p.high),
        uniform(key, 3, p.low, p.high),
    )


def step(s: State, action: int, key: Key, p: Params) -> tuple[State, float, bool]:
    total_mass = p.cart_mass + p.pole_mass
    mass_ratio = p.pole_mass / total_mass
    force_acc = p.force / total_mass  # [m/s^2]
    sin, cos = sincos(s.theta)

    # The acceleration of the cart if theta_acc were 0.
    base_acc = (force_acc if action == 1 else -force_acc) + mass_ratio * p.half_length * s.theta_dot**2 * sin
    theta_acc = (p.gravity * sin - cos * base_acc) / (p.half_length * (4.0 / 3.0 - mass_ratio * cos**2))
    x_acc = base_acc - mass_ratio * p.half_length * cos * theta_acc

    s = State(
        s.x + p.dt * s.x_dot,
        s.x_dot + p.dt * x_acc,
        s.theta + p.dt * s.theta_dot,
        s.theta_dot + p.dt * theta_acc,
    )
    terminated = abs(s.x) > p.x_limit or abs(s.theta) > p.theta_limit
    reward = (-1.0 if terminated else 0.0) if p.sutton_barto_reward else 1.0
    return s, reward, terminated


def observe(s: State, p: Params) -> tuple[float, float, float, float]:
    return s.x, s.x_dot, s.theta, s.theta_dot


def spaces(p: Params) -> tuple[Box, Discrete]:
    high = np.array([2.0 * p.x_limit, np.inf, 2.0 * p.theta_limit, np.inf], np.float32)
    return Box(-high, high), Discrete(2)


def check(p: Params) -> None:
    require_positive(p, "cart_mass", "pole_mass", "half_length", "dt", "x_limit", "theta_limit")
    require_ordered(p, "low", "high")


def events(before: State, s: State, p: Params) -> list[tuple[str, str, tuple[int, ...]]]:
    if abs(s.theta) > p.theta_limit:
        return [("loss", "the pole leans too far", ())]
    return [("loss", "the cart is too far from the centre", ())] if abs(s.x) > p.x_limit else []


ENV = SingleAgentEnv(
    state=State,
    params=Params(),
    reset=reset,
    step=step,
    observe=observe,
    spaces=spaces,
    max_episode_steps=500,
    reward_threshold=475.0,
    reset_options=("low", "high"),
    check=check,
    cuda_c="cuda_c/cartpole.cu",
    draw=pictures.cartpole,
    events=events,
    feature_names=("position", "velocity", "angle", "angular velocity"),
    action_names=("left", "right"),
    render_fps=50,
)
