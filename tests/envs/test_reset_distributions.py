"""Tests that initial states of the bundled environments follow the distributions of the rules and are uncorrelated.

Seeds are fixed, so the results are reproducible. A correct generator rarely exceeds the bounds.
"""

import math

import gymnasium
import numpy as np
import pytest
from scipy import stats
from tests.support.arrays import host, step

E = 20_000
CORRELATION = 4.5 / math.sqrt(E)

# RULES has {field: (low, high)} with the default parameters, where equal bounds mean a constant.
# OPTIONS has reset options and the bounds that they lead to.
RULES = {
    "CartPole-v1": dict.fromkeys(("x", "x_dot", "theta", "theta_dot"), (-0.05, 0.05)),
    "Acrobot-v1": dict.fromkeys(("theta1", "theta2", "theta1_dot", "theta2_dot"), (-0.1, 0.1)),
    "MountainCar-v0": {"x": (-0.6, -0.4), "v": (0.0, 0.0)},
    "MountainCarContinuous-v0": {"x": (-0.6, -0.4), "v": (0.0, 0.0)},
    "Pendulum-v1": {"theta": (-math.pi, math.pi), "theta_dot": (-1.0, 1.0)},
}
OPTIONS = {
    "CartPole-v1": ({"low": 0.01, "high": 0.04}, dict.fromkeys(RULES["CartPole-v1"], (0.01, 0.04))),
    "Acrobot-v1": ({"low": -1.0}, dict.fromkeys(RULES["Acrobot-v1"], (-1.0, 0.1))),
    "MountainCar-v0": ({"low": -1.0, "high": 0.25}, {"x": (-1.0, 0.25), "v": (0.0, 0.0)}),
    "MountainCarContinuous-v0": ({"high": 0.25}, {"x": (-0.6, 0.25), "v": (0.0, 0.0)}),
    "Pendulum-v1": ({"x_init": 0.5, "y_init": 4.0}, {"theta": (-0.5, 0.5), "theta_dot": (-4.0, 4.0)}),
}


def assert_initial_states(state, rule):
    """Asserts that `state`, {field: (E,)}, has independent uniform numbers within the bounds of `rule`."""
    assert state.keys() == rule.keys()
    columns = []
    for field, (low, high) in rule.items():
        values = state[field]
        assert values.shape == (E,)
        if low == high:
            assert (values == low).all(), field
            continue
        assert values.min() >= np.float32(low), field
        assert values.max() <= np.float32(high), field
        assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-3, field
        columns.append(values)
    assert_uncorrelated(columns)


def assert_uncorrelated(columns):
    matrix = np.atleast_2d(np.corrcoef(columns)) - np.eye(len(columns))
    assert np.abs(matrix).max() < CORRELATION


def random_fields(state, rule):
    """Returns the fields of `state` that are random according to `rule`."""
    return [state[field] for field, (low, high) in rule.items() if low != high]


@pytest.mark.first_variants(4)
@pytest.mark.parametrize("name", RULES)
def test_initial_states_follow_the_distributions(name, device):
    """Episodes last one step, so that a step shows what an automatic reset draws."""
    rule, (options, other) = RULES[name], OPTIONS[name]
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=E, device=device, autoreset_mode="SameStep", max_episode_steps=1)

    env.reset(seed=1)
    first = host(env.get_state())
    assert_initial_states(first, rule)
    for values in random_fields(first, rule):
        # Neighbouring rows are uncorrelated.
        assert_uncorrelated([values[:-1], values[1:]])

    env.reset()
    second = host(env.get_state())
    assert_initial_states(second, rule)
    assert_uncorrelated(random_fields(first, rule) + random_fields(second, rule))

    env.reset(seed=2, options=options)
    with_options = host(env.get_state())
    assert_initial_states(with_options, other)
    assert_uncorrelated(random_fields(first, rule) + random_fields(with_options, other))

    *_, truncated, _ = step(env, np.zeros(env.action_space.shape, env.action_space.dtype))
    assert truncated.all()
    after_autoreset = host(env.get_state())
    # Options apply to one reset only.
    assert_initial_states(after_autoreset, rule)
    assert_uncorrelated(random_fields(with_options, other) + random_fields(after_autoreset, rule))

    env.reset(seed=list(range(E)))
    assert_initial_states(host(env.get_state()), rule)
    env.close()


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("name", RULES)
def test_parameters_bound_every_initial_state(name, device):
    """Keyword arguments of the environment apply to every reset, including automatic resets."""
    options, rule = OPTIONS[name]
    env = gymnasium.make_vec(
        f"gpuvec/{name}", num_envs=E, device=device, autoreset_mode="SameStep", max_episode_steps=1, **options
    )
    env.reset(seed=3)
    assert_initial_states(host(env.get_state()), rule)
    step(env, np.zeros(env.action_space.shape, env.action_space.dtype))
    assert_initial_states(host(env.get_state()), rule)
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"])
def test_bounds_out_of_order_raise(name):
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=2, device="cpu", output="numpy")
    with pytest.raises(ValueError, match="Lower bound"):
        env.reset(options={"low": 0.5, "high": 0.4})
    with pytest.raises(ValueError, match="could not be converted to a float"):
        env.reset(options={"low": "far"})
    env.close()
    with pytest.raises(ValueError, match="Lower bound"):
        gymnasium.make_vec(f"gpuvec/{name}", num_envs=2, device="cpu", output="numpy", low=0.5, high=0.4)
