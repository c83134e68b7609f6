"""Tests of the rules of the bundled environments in plain Python, against values calculated by hand and against bounds.

`sincos` and `wrap` compute in float32 in plain Python too, so the comparisons have tolerances.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuvec import Key, angles
from gpuvec_envs import acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum

KEY = Key(seed=0, seed_high=0, row=0, episode=0, step=1)
MODULES = [cartpole, acrobot, mountain_car, continuous_mountain_car, pendulum]

approx = lambda value: pytest.approx(value, rel=1e-6, abs=1e-6)


def step(module, state, action, **params):
    return module.step(module.State(*state), action, KEY, module.Params(**params))


class TestAngles:
    @pytest.mark.parametrize(("reach", "tolerance"), [(4.0, 1e-7), (100.0, 1e-7), (10_000.0, 2e-7)])
    def test_sincos_and_wrap_agree_with_float64(self, reach, tolerance):
        angle = np.random.default_rng(0).uniform(-reach, reach, 2000).astype(np.float32)
        exact = angle.astype(np.float64)
        sin, cos = np.transpose([angles.sincos(a) for a in angle])
        np.testing.assert_allclose(sin, np.sin(exact), rtol=0, atol=tolerance)
        np.testing.assert_allclose(cos, np.cos(exact), rtol=0, atol=tolerance)
        wrapped = np.array([angles.wrap(a) for a in angle])
        assert np.all(np.abs(wrapped) <= math.pi + 1e-6)
        num_turns = (wrapped - exact) / (2.0 * math.pi)
        np.testing.assert_allclose(num_turns, np.round(num_turns), rtol=0, atol=tolerance)

    @pytest.mark.parametrize("quarter", range(-9, 10))
    def test_sincos_at_multiples_of_a_quarter_turn(self, quarter):
        sin, cos = angles.sincos(quarter * math.pi / 2.0)
        assert (sin, cos) == (approx([0.0, 1.0, 0.0, -1.0][quarter % 4]), approx([1.0, 0.0, -1.0, 0.0][quarter % 4]))


class TestCartPole:
    @pytest.mark.parametrize(("action", "sign"), [(0, -1.0), (1, 1.0)])
    def test_a_force_accelerates_cart_and_pole_from_rest(self, action, sign):
        """With M = 11/10 and d = 100/11: theta_acc = -600/41 and x_acc = 400/41; positions use the old velocities."""
        s, reward, terminated = step(cartpole, (0.0, 0.0, 0.0, 0.0), action)
        assert s == approx((0.0, sign * 0.02 * 400 / 41, 0.0, -sign * 0.02 * 600 / 41))
        assert (reward, terminated) == (1.0, False)

    def test_positions_use_the_old_velocities(self):
        s, _, _ = step(cartpole, (0.1, 0.5, 0.02, -0.25), 1)
        assert (s.x, s.theta) == approx((0.11, 0.015))

    @pytest.mark.parametrize(("field", "limit"), [(0, 2.4), (2, math.radians(12.0))])
    @pytest.mark.parametrize("side", [-1.0, 1.0])
    def test_limits_are_strict(self, field, limit, side):
        # The velocities are zero, so the positions do not change in this step.
        at, beyond = [0.0] * 4, [0.0] * 4
        at[field], beyond[field] = side * limit, side * np.nextafter(limit, np.inf)
        assert step(cartpole, at, 1)[1:] == (1.0, False)
        assert step(cartpole, beyond, 1)[1:] == (1.0, True)

    def test_sutton_barto_reward_is_minus_one_only_at_termination(self):
        assert step(cartpole, (0.0, 0.0, 0.0, 0.0), 1, sutton_barto_reward=True)[1:] == (0.0, False)
        assert step(cartpole, (2.5, 0.0, 0.0, 0.0), 1, sutton_barto_reward=True)[1:] == (-1.0, True)

    def test_derived_constants_follow_the_parameters(self):
        """With a cart of 1.9 kg M is 2: d = 5, theta_acc = -5 / (0.5 (4/3 - 1/20)) = -600/77, x_acc = 5 + 15/77."""
        s, _, _ = step(cartpole, (0.0, 0.0, 0.0, 0.0), 1, cart_mass=1.9, dt=0.01)
        assert s == approx((0.0, 0.01 * (5 + 15 / 77), 0.0, -0.01 * 600 / 77))

    def test_limits_shape_the_observation_space(self):
        space, _ = cartpole.spaces(cartpole.Params(x_limit=1.0))
        np.testing.assert_allclose(space.high, [2.0, np.inf, 0.41887903, np.inf])


class TestMountainCar:
    def test_only_the_action_accelerates_the_car_on_level_ground(self):
        for action, v in enumerate((-0.001, 0.0, 0.001)):
            s, reward, terminated = step(mountain_car, (-math.pi / 6, 0.0), action)
            assert s == approx((-math.pi / 6 + v, v))
            assert (reward, terminated) == (-1.0, False)

    def test_gravity_accelerates_the_car_down_the_slope(self):
        assert step(mountain_car, (0.0, 0.0), 1)[0] == approx((-0.0025, -0.0025))

    def test_the_left_wall_stops_the_car(self):
        s, _, _ = step(mountain_car, (-1.19, -0.07), 0)
        assert s == (-1.2, 0.0)

    def test_the_right_wall_does_not_change_the_velocity(self):
        """The car starts beyond the goal, where gravity accelerates it to the right because cos(1.8) is negative."""
        s, _, terminated = step(mountain_car, (0.6, 0.05), 1)
        assert (s.x, s.v, terminated) == (0.6, approx(0.05 - 0.0025 * math.cos(1.8)), True)

    def test_speed_is_limited(self):
        assert step(mountain_car, (-math.pi / 6, 0.07), 2)[0].v == 0.07
        assert step(mountain_car, (-math.pi / 6, -0.07), 0)[0].v == -0.07

    @pytest.mark.parametrize(("module", "action", "goal"), [(mountain_car, 1, 0.5), (continuous_mountain_car, (0.0,), 0.45)])
    def test_reaching_the_goal_exactly_terminates(self, module, action, goal):
        """Gravity is zero, so the car ends exactly at 0.25 + 0.0625, a sum without rounding."""
        run = (0.25, 0.0625)
        assert step(module, run, action, gravity=0.0, goal_position=0.3125)[2]
        assert not step(module, run, action, gravity=0.0, goal_position=np.nextafter(0.3125, 1.0))[2]
        assert step(module, run, action, gravity=0.0, goal_position=0.3125, goal_velocity=0.0625)[2]
        assert not step(module, run, action, gravity=0.0, goal_position=0.3125, goal_velocity=np.nextafter(0.0625, 1.0))[2]
        assert module.Params().goal_position == goal

    def test_moving_backward_beyond_the_goal_does_not_terminate(self):
        assert not step(mountain_car, (0.55, -0.02), 0)[2]

    @given(st.floats(-1.2, 0.6), st.floats(-0.07, 0.07), st.integers(0, 2))
    def test_the_state_stays_in_the_observation_space(self, x, v, action):
        s, _, _ = step(mountain_car, (x, v), action)
        assert -1.2 <= s.x <= 0.6
        assert -0.07 <= s.v <= 0.07

    def test_an_invalid_action_applies_no_force(self):
        for action in (-1, 3, 2**31 - 1):
            assert step(mountain_car, (-0.5, 0.01), action) == step(mountain_car, (-0.5, 0.01), 1)


class TestContinuousMountainCar:
    def test_the_action_sets_force_and_reward(self):
        s, reward, terminated = step(continuous_mountain_car, (-math.pi / 6, 0.0), (0.5,))
        assert s == approx((-math.pi / 6 + 0.00075, 0.00075))
        assert (reward, terminated) == (approx(-0.025), False)

    def test_the_force_is_clipped_and_the_cost_is_not(self):
        s, reward, _ = step(continuous_mountain_car, (-0.5, 0.0), (-3.0,))
        assert s == step(continuous_mountain_car, (-0.5, 0.0), (-1.0,))[0]
        assert reward == approx(-0.9)

    def test_reaching_the_goal_rewards_100_minus_the_action_cost(self):
        assert step(continuous_mountain_car, (0.44, 0.05), (2.0,))[1:] == (approx(100.0 - 0.4), True)

    def test_the_left_wall_stops_the_car(self):
        assert step(continuous_mountain_car, (-1.2, -0.01), (-1.0,))[0] == (-1.2, 0.0)

    def test_power_scales_the_force(self):
        assert step(continuous_mountain_car, (-math.pi / 6, 0.0), (1.0,), power=0.002)[0].v == approx(0.002)


class TestPendulum:
    def test_gravity_accelerates_a_horizontal_pendulum(self):
        """3 g / (2 l) = 15 rad/s^2: w' = 0.75, and the angle moves with the new speed."""
        s, reward, terminated = step(pendulum, (math.pi / 2, 0.0), (0.0,))
        assert s == approx((math.pi / 2 + 0.0375, 0.75))
        assert (reward, terminated) == (approx(-((math.pi / 2) ** 2)), False)

    def test_the_clipped_torque_determines_motion_and_reward(self):
        s, reward, _ = step(pendulum, (0.0, 0.0), (-5.0,))
        assert s == approx((-0.015, -0.3))
        assert reward == approx(-0.004)

    def test_the_clipped_speed_changes_the_angle(self):
        s, reward, _ = step(pendulum, (math.pi / 2, 7.9), (2.0,))
        assert s == approx((math.pi / 2 + 0.4, 8.0))
        assert reward == approx(-((math.pi / 2) ** 2 + 0.1 * 7.9**2 + 0.001 * 4.0))

    @pytest.mark.parametrize("num_turns", [-8, -1, 1, 8])
    def test_the_angle_is_wrapped_only_in_the_reward(self, num_turns):
        s, reward, _ = step(pendulum, (1.0 + num_turns * 2 * math.pi, 0.0), (0.0,))
        assert reward == pytest.approx(-1.0, abs=1e-5)
        assert s.theta == pytest.approx(1.0 + num_turns * 2 * math.pi, abs=0.1)

    def test_parameters_change_the_dynamics(self):
        at_the_side, dt = (math.pi / 2, 0.0), 0.05
        assert step(pendulum, at_the_side, (0.0,), g=2.0)[0].theta_dot == approx(3.0 * dt)
        assert step(pendulum, at_the_side, (0.0,), length=2.0)[0].theta_dot == approx(7.5 * dt)
        assert step(pendulum, (0.0, 0.0), (1.0,), length=2.0, mass=3.0)[0].theta_dot == approx(dt / 4.0)
        assert step(pendulum, at_the_side, (0.0,), dt=0.01)[0] == approx((math.pi / 2 + 0.0015, 0.15))

    def test_observation_is_cosine_sine_and_velocity(self):
        assert pendulum.observe(pendulum.State(math.pi / 6, 2.0), pendulum.Params()) == approx((math.sqrt(0.75), 0.5, 2.0))


class TestAcrobot:
    def test_hanging_at_rest_is_an_equilibrium(self):
        s, reward, terminated = step(acrobot, (0.0, 0.0, 0.0, 0.0), 1)
        assert s == approx((0.0, 0.0, 0.0, 0.0))
        assert (reward, terminated) == (-1.0, False)

    @pytest.mark.parametrize(("action", "sign"), [(0, -1.0), (2, 1.0)])
    def test_torque_accelerates_the_hanging_links(self, action, sign):
        """With d1 = 9/2 and d2 = 7/4: w2_dot = 1 / (5/4 - d2^2 / d1) = 72/41 and w1_dot = -d2 / d1 w2_dot = -28/41."""
        s, _, _ = step(acrobot, (0.0, 0.0, 0.0, 0.0), action, dt=1e-3)
        assert (s.theta1_dot, s.theta2_dot) == approx((-sign * 0.028 / 41, sign * 0.072 / 41))

    def test_gravity_accelerates_a_bent_arm_at_rest(self):
        """t1 = 0, t2 = pi/2: d1 = 7/2, d2 = 5/4, phi1 = phi2 = 4.9, so w2_dot = -4.9 (1 - 5/14) / (5/4 - 25/56) = -3.92."""
        s, _, _ = step(acrobot, (0.0, math.pi / 2, 0.0, 0.0), 1, dt=1e-4)
        assert (s.theta1_dot, s.theta2_dot) == pytest.approx((0.0, -3.92e-4), abs=1e-8)

    @pytest.mark.parametrize(
        "params", [{}, {"mass1": 2.0, "mass2": 0.5, "length1": 1.5, "com1": 0.7, "com2": 0.4, "inertia": 0.3, "gravity": 3.7}]
    )
    def test_energy_is_conserved_without_torque(self, params):
        """The equations of the book conserve the energy of two rigid links, with any parameters."""
        p = acrobot.Params(dt=0.01, **params)

        def energy(s):
            bend = s.theta1 + s.theta2
            joint = p.length1 * s.theta1_dot
            tip = p.com2 * (s.theta1_dot + s.theta2_dot)
            speed2 = joint**2 + tip**2 + 2.0 * joint * tip * math.cos(s.theta2)
            kinetic = 0.5 * (
                (p.mass1 * p.com1**2 + p.inertia) * s.theta1_dot**2
                + p.mass2 * speed2
                + p.inertia * (s.theta1_dot + s.theta2_dot) ** 2
            )
            height1, height2 = -p.com1 * math.cos(s.theta1), -p.length1 * math.cos(s.theta1) - p.com2 * math.cos(bend)
            return kinetic + p.gravity * (p.mass1 * height1 + p.mass2 * height2)

        s = acrobot.State(1.0, -0.7, 0.5, 2.0)
        before = energy(s)
        for _ in range(200):
            s, _, _ = acrobot.step(s, 1, KEY, p)
        assert abs(s.theta1 - 1.0) > 0.1
        assert energy(s) == pytest.approx(before, abs=2e-4)

    def test_termination_requires_the_tip_above_the_goal_height(self):
        assert step(acrobot, (math.pi, 0.0, 0.0, 0.0), 1)[1:] == (0.0, True)
        hanging = (0.0, 0.0, 0.0, 0.0)  # the tip is exactly 2 m below the pivot
        assert not step(acrobot, hanging, 1, goal_height=-2.0)[2]
        assert step(acrobot, hanging, 1, goal_height=np.nextafter(-2.0, -3.0))[2]
        level = 2.0 * math.pi / 3.0  # both links stand 30 degrees above the horizontal, the tip one metre above the pivot
        assert step(acrobot, (level + 0.01, 0.0, 0.0, 0.0), 1, dt=1e-6)[1:] == (0.0, True)
        assert step(acrobot, (level - 0.01, 0.0, 0.0, 0.0), 1, dt=1e-6)[1:] == (-1.0, False)
        assert step(acrobot, (level + 0.01, 0.0, 0.0, 0.0), 1, dt=1e-6, goal_height=1.1)[1:] == (-1.0, False)

    def test_angles_are_wrapped_and_speeds_clipped(self):
        s, _, _ = step(acrobot, (3.1, -3.1, 12.0, -28.0), 1)
        assert abs(s.theta1) <= math.pi + 1e-6
        assert abs(s.theta2) <= math.pi + 1e-6
        s, _, _ = step(acrobot, (0.0, 0.0, 12.0, -28.0), 1, max_speed1=2.0, max_speed2=3.0)
        assert (abs(s.theta1_dot), abs(s.theta2_dot)) == (2.0, 3.0)


@pytest.mark.parametrize("module", MODULES)
class TestEveryEnvironment:
    def test_default_parameters_are_valid(self, module):
        assert module.ENV.check(module.ENV.params) is None

    def test_docstring_sections_are_in_order(self, module):
        parts = ["\nObservation: ", "\nAction: ", "\nReward: ", "\nTermination: ", "\nParameters: ", "\nSource: "]
        places = [module.__doc__.find(part) for part in parts]
        assert -1 not in places
        assert places == sorted(places)


@pytest.mark.parametrize("module", [cartpole, acrobot, mountain_car, continuous_mountain_car])
def test_initial_state_bounds_must_be_in_order(module):
    with pytest.raises(ValueError, match=r"Lower bound \(0\.3\) must be lower than higher bound \(0\.2\)"):
        module.check(module.Params(low=0.3, high=0.2))
    module.check(module.Params(low=0.3, high=0.3))


@pytest.mark.parametrize("name", ["x_init", "y_init"])
def test_pendulum_initial_state_bounds_must_not_be_negative(name):
    with pytest.raises(ValueError, match=rf"{name} is -0\.5; it must be at least 0"):
        pendulum.check(pendulum.Params(**{name: -0.5}))
    pendulum.check(pendulum.Params(**{name: 0.0}))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (cartpole, ["cart_mass", "pole_mass", "half_length", "dt", "x_limit", "theta_limit"]),
        (acrobot, ["length1", "length2", "mass1", "mass2", "com1", "com2", "inertia", "dt", "max_speed1", "max_speed2"]),
        (mountain_car, ["max_speed"]),
        (continuous_mountain_car, ["max_speed", "max_action"]),
        (pendulum, ["mass", "length", "max_torque", "max_speed", "dt"]),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_invalid_physical_parameters_raise(module, names, value):
    for name in names:
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be greater than 0"):
            module.check(module.Params(**{name: value}))


@pytest.mark.parametrize("module", [mountain_car, continuous_mountain_car])
def test_wall_positions_must_be_in_order(module):
    with pytest.raises(ValueError, match=r"Lower bound \(0\.7\) .* min_position and max_position"):
        module.check(module.Params(min_position=0.7))
