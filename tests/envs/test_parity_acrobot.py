"""Acrobot over the whole range of its speeds, where one step magnifies the rounding of the state that it starts from.

One Runge-Kutta step of 0.2 s is far too long for a link that turns at up to 28 rad/s: slopes in between reach 800 rad/s, and a
change of the state by half a unit in its last place moves the exact result by more than 1e-5 in 6 % of the states. Gymnasium's
own formulas in float32 differ from those in float64 by more than that in 4 %. So the allowed error is what such a change does
to Gymnasium's own float64 result, state by state.
"""

import gymnasium
import numpy as np
from tests.support.arrays import host, step

TOLERANCE = 1e-5  # where a step magnifies nothing
ROUNDINGS = 6.0  # of the state, that the float32 arithmetic of a step may amount to
STATES = 3_000
HIGH = np.array([np.pi, np.pi, 4.0 * np.pi, 9.0 * np.pi])


def exact(states, actions):
    """(N, 4) float64: Gymnasium's states after one step, the angles on a circle, which has no wrap: (N, 6)."""
    env, found = gymnasium.make("Acrobot-v1").unwrapped, []
    env.reset(seed=0)
    for state, action in zip(states, actions, strict=True):
        env.state = state
        env.step(int(action))
        found.append(env.state)
    return on_circle(np.array(found))


def on_circle(states):
    """Sines and cosines in place of the angles."""
    return np.concatenate([np.sin(states[:, :2]), np.cos(states[:, :2]), states[:, 2:]], 1)


def magnified(states, actions, expected):
    """(N, 1): how far half a unit in the last place of each number of the state moves Gymnasium's result, summed up."""
    total = np.zeros((len(states), 1))
    for k in range(4):
        moved = states.astype(np.float64)
        moved[:, k] += 0.5 * np.spacing(np.abs(states[:, k]))
        total += np.abs(exact(moved, actions) - expected).max(1, keepdims=True)
    return total


def test_errors_are_those_of_rounding_the_state(device):
    random = np.random.default_rng(0)
    states = random.uniform(-HIGH, HIGH, (STATES, 4)).astype(np.float32)
    actions = random.integers(0, 3, STATES)
    expected = exact(states.astype(np.float64), actions)
    allowed = TOLERANCE + ROUNDINGS * magnified(states, actions, expected)
    assert np.median(allowed) < 2.0 * TOLERANCE  # most states are as strict as everywhere else

    env = gymnasium.make_vec("gpuvec/Acrobot-v1", num_envs=STATES, device=device, autoreset_mode="Disabled")
    env.reset(seed=0)
    fields = ("theta1", "theta2", "theta1_dot", "theta2_dot")
    env.set_state(dict(zip(fields, states.T, strict=True)))
    step(env, actions)
    found = np.stack([host(env.get_state())[field] for field in fields], 1).astype(np.float64)
    env.close()

    error = np.abs(on_circle(found) - expected)
    worst = int((error - allowed).max(1).argmax())
    assert (error <= allowed).all(), f"state {states[worst]}: error {error[worst].max():.3g}, allowed {allowed[worst, 0]:.3g}"
