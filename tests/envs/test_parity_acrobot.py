"""Acrobot over the whole range of its speeds, where one step magnifies the rounding of the state that it starts from.

One Runge-Kutta step of 0.2 s is far too long for a link that turns at up to 28 rad/s: slopes in between reach 800 rad/s, and a
change of the state by half a unit in its last place moves the exact result by more than 1e-5 in 6 % of the states. Gymnasium's
own formulas in float32 differ from those in float64 by more than that in 4 %. So the allowed error is what such a change does
to Gymnasium's own float64 result, state by state.
"""

import gymnasium
import numpy as np
from tests.support.arrays import host, step

# The allowed error where a step does not magnify rounding.
TOLERANCE = 1e-5
# The float32 arithmetic of a step may have the effect of this many roundings of the state.
MAX_ROUNDINGS = 6.0
NUM_STATES = 3_000
HIGH = np.array([np.pi, np.pi, 4.0 * np.pi, 9.0 * np.pi])


def gymnasium_step(states, actions):
    """Returns Gymnasium's float64 states after one step from `states` (N, 4), with sines and cosines for the angles: (N, 6)."""
    env, next_states = gymnasium.make("Acrobot-v1").unwrapped, []
    env.reset(seed=0)
    for state, action in zip(states, actions, strict=True):
        env.state = state
        env.step(int(action))
        next_states.append(env.state)
    return angles_as_sine_and_cosine(np.array(next_states))


def angles_as_sine_and_cosine(states):
    """Returns states (N, 6) that have sines and cosines in place of the angles, so that wrapping does not matter."""
    return np.concatenate([np.sin(states[:, :2]), np.cos(states[:, :2]), states[:, 2:]], 1)


def rounding_sensitivity(states, actions, expected):
    """Returns (N, 1): the sum of the changes of Gymnasium's result when each number of the state changes by half an ulp."""
    total = np.zeros((len(states), 1))
    for k in range(4):
        moved = states.astype(np.float64)
        moved[:, k] += 0.5 * np.spacing(np.abs(states[:, k]))
        total += np.abs(gymnasium_step(moved, actions) - expected).max(1, keepdims=True)
    return total


def test_errors_are_at_most_those_of_rounding_the_state(device):
    random = np.random.default_rng(0)
    states = random.uniform(-HIGH, HIGH, (NUM_STATES, 4)).astype(np.float32)
    actions = random.integers(0, 3, NUM_STATES)
    expected = gymnasium_step(states.astype(np.float64), actions)
    allowed = TOLERANCE + MAX_ROUNDINGS * rounding_sensitivity(states, actions, expected)
    # For most states the allowed error is about that of the other tests.
    assert np.median(allowed) < 2.0 * TOLERANCE

    env = gymnasium.make_vec("gpuvec/Acrobot-v1", num_envs=NUM_STATES, device=device, autoreset_mode="Disabled")
    env.reset(seed=0)
    fields = ("theta1", "theta2", "theta1_dot", "theta2_dot")
    env.set_state(dict(zip(fields, states.T, strict=True)))
    step(env, actions)
    next_states = np.stack([host(env.get_state())[field] for field in fields], 1).astype(np.float64)
    env.close()

    error = np.abs(angles_as_sine_and_cosine(next_states) - expected)
    worst = int((error - allowed).max(1).argmax())
    assert (error <= allowed).all(), f"state {states[worst]}: error {error[worst].max():.3g}, allowed {allowed[worst, 0]:.3g}"
