"""States are validated before kernels use them, so that no state makes a kernel read outside its arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.support import street_env
from tests.support.arrays import host, on_device
from tests.support.bundled_envs import BUNDLED_ENVS, SHORT_EPISODES, SMALL_PARAMS
from tests.support.counter_env import make, shared

from gpuvec import VectorEnv
from gpuvec.errors import StateError
from gpuvec_envs import tag_grid_world

E = 4
LARGEST = 2**31 - 1

FUZZ = """
import sys
import gymnasium, numpy as np
import gpuvec
from gpuvec.errors import StateError

envs = gymnasium.make_vec(sys.argv[1], num_envs=4, device="cpu", output="numpy", **eval(sys.argv[2]))
envs.action_space.seed(0)
envs.reset(seed=0)
saved, accepted, rejected = envs.state_dict(), 0, 0


def attempt(change):
    global accepted, rejected
    envs.load_state_dict(saved)
    try:
        change()
    except StateError:
        rejected += 1
        return
    accepted += 1
    for _ in range(7):  # after five steps an episode ends and the next one begins
        envs.step(envs.action_space.sample())
    envs.reset(options={"reset_mask": np.array([True, False, True, False])})


for value in (-1, 10**9, 2**31 - 1, -(2**31)):
    for name, array in saved["buffers"].items():
        parts = [...] if array.ndim < 2 else [..., *((slice(None), k) for k in range(array.shape[1]))]
        for part in parts:
            other = {key: one.copy() for key, one in saved["buffers"].items()}
            with np.errstate(all="ignore"):
                other[name][part] = np.int64(value).astype(other[name].dtype)
            attempt(lambda other=other: envs.load_state_dict({**saved, "buffers": other}))
    for name in envs.get_state():
        attempt(lambda name=name, value=value: envs.set_state({name: value}))
        attempt(lambda name=name, value=value: envs.set_state({name: value}, np.array([False, True, False, False])))
print(accepted, rejected)
"""


# Their states are scalars, as those of CartPole and Pendulum.
SIMILAR = ("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SIMILAR else ()) for name in BUNDLED_ENVS]
)
def test_arbitrary_numbers_in_saved_fields_do_not_crash_the_process(name):
    partial = {"use_full_observation": False} if name.startswith("Tag") else {}  # the state has indices of neighbors
    options = SHORT_EPISODES | SMALL_PARAMS.get(name, {}) | partial
    result = subprocess.run(
        [sys.executable, "-c", FUZZ, f"gpuvec/{name}", repr(options)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    accepted, rejected = map(int, result.stdout.split())
    assert accepted > 0
    assert rejected > 0


def street(device, **kwargs):
    env = street_env.make(E, device, **kwargs)
    env.reset(seed=0)
    return env


def with_buffer(saved, name, change):
    """Returns the saved state with one buffer, a NumPy array, changed by `change(array)`."""
    array = host(saved["buffers"][name])
    change(array)
    return {**saved, "buffers": {**saved["buffers"], name: array}}


def column(env, field):
    """Returns the buffer and the column of a field of the agents."""
    ((buffer, names),) = ((b, names) for b, names in env.simulation.schema.packed_fields.items() if field in names)
    return buffer, names.index(field)


class TestLoad:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("role", 2, r"'role', row 2: given \[2, 1, 1, 1\], allowed 1 times 0 \(guard\), 3 times 1 \(walker\)"),
            ("role", -1, r"'role', row 2"),
            ("role", 1, r"'role', row 2: given \[1, 1, 1, 1\]"),
            ("agents_by_role", 10**9, r"'agents_by_role', row 2, agent 0: given 1000000000, allowed 0"),
            ("agents_by_role", -1, r"'agents_by_role', row 2, agent 0: given -1, allowed 0"),
            ("agents_by_role", 1, r"'agents_by_role', row 2, agent 0: given 1, allowed 0"),
        ],
    )
    def test_invalid_roles_raise(self, device, field, value, message):
        env = street(device)
        saved = env.state_dict()
        before = host(saved["buffers"])
        buffer, k = column(env, field)

        def change(array):
            array[2, k, 0] = value

        with pytest.raises(StateError, match=message):
            env.load_state_dict(with_buffer(saved, buffer, change))
        for name, values in host(env.state_dict()["buffers"]).items():
            np.testing.assert_array_equal(values, before[name])
        env.load_state_dict(saved)

    def test_agents_by_role_must_match_the_roles(self, device):
        env = street(device)
        buffer, k = column(env, "agents_by_role")

        def change(array):
            array[1, k] = [0, 2, 1, 3]

        with pytest.raises(StateError, match=r"'agents_by_role', row 1, agent 1: given 2, allowed 1"):
            env.load_state_dict(with_buffer(env.state_dict(), buffer, change))

    def test_roles_in_any_order(self, device):
        env = street(device)
        env.set_state({"role": on_device(env, np.array([[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 0], [1, 1, 0, 1]]))})
        saved, roles = env.state_dict(), host(env.roles["guard"])
        env.set_state({"role": on_device(env, np.array([0, 1, 1, 1]))})
        env.load_state_dict(saved)
        np.testing.assert_array_equal(host(env.roles["guard"]), roles)

    @pytest.mark.parametrize(("mode", "minimum"), [("NextStep", -1), ("Disabled", -1), ("SameStep", 0)])
    def test_episode_times_are_limited(self, mode, minimum):
        env = make("tests/Mixed-v0", E, autoreset_mode=mode)
        env.reset(seed=0)
        saved = env.state_dict()
        clock = int(saved["buffers"]["clock"][0])
        for time in (minimum, 0, 5):
            env.load_state_dict(with_buffer(saved, "start", lambda array, time=time: array.fill(clock - time)))
            env.step(np.zeros((E, 2), int))
        for time in (minimum - 1, 6, -(2**31) + 1):
            with pytest.raises(StateError, match=rf"'clock' less 'start', row 0: given {time}, allowed {minimum} to 5 steps"):
                env.load_state_dict(with_buffer(saved, "start", lambda array, time=time: array.fill(clock - time)))

    def test_length_of_the_last_episode_is_limited(self):
        env = street("cpu")
        with pytest.raises(StateError, match=r"'last_time', row 0: given 51, allowed 0 to 50"):
            env.load_state_dict(with_buffer(env.state_dict(), "last_time", lambda array: array.fill(51)))

    def test_saved_errors_of_unknown_rows_raise(self):
        env = shared("tests/Counter-v0", E, maximum=1e9)
        env.reset(seed=0)
        with pytest.raises(StateError, match="'faults'"):
            env.load_state_dict(with_buffer(env.state_dict(), "faults", lambda array: array.fill(10**9)))

    @pytest.mark.parametrize(("value", "message"), [(np.nan, "must be a number"), (-1.0, "must be below maximum")])
    def test_invalid_params_per_env_raise(self, value, message):
        env = make("tests/Counter-v0", E)
        env.reset(seed=0)
        with pytest.raises(StateError, match=message):
            env.load_state_dict(with_buffer(env.state_dict(), "param_maximum", lambda array: array.fill(value)))
        assert env.get_attr("maximum") == (5.0,) * E

    @pytest.mark.parametrize("seed", ["x", -1, 2**64, 1.5, [1, 2], [1, 2, 3, "x"], True])
    def test_invalid_seeds_raise(self, seed):
        env = shared("tests/Counter-v0", E, maximum=1e9)
        env.reset(seed=0)
        with pytest.raises(StateError, match="'seed' holds"):
            env.load_state_dict(env.state_dict() | {"seed": seed})


class TestRanges:
    """TagGridWorld declares the ranges of its coordinates."""

    def make(self, **kwargs):
        env = VectorEnv(tag_grid_world.ENV, E, device="cpu", output="numpy", num_taggers=1, **kwargs)
        env.reset(seed=0)
        return env

    def test_set_state_checks_ranges(self):
        env = self.make()
        before = env.get_state()
        wrong = before["x"].copy()
        wrong[3, 1] = 11
        with pytest.raises(StateError, match=r"state field 'x', row 3, agent 1: given 11, allowed 0 to 10"):
            env.set_state({"y": 5, "x": wrong})
        np.testing.assert_array_equal(env.get_state()["y"], before["y"])
        env.set_state({"x": wrong}, np.array([True, True, True, False]))  # the mask excludes row 3
        np.testing.assert_array_equal(env.get_state()["x"], before["x"])

    def test_load_state_dict_checks_ranges(self):
        env = self.make()
        buffer, k = column(env, "y")

        def change(array):
            array[1, k, 0] = -7

        with pytest.raises(StateError, match=r"state field 'y', row 1, agent 0: given -7, allowed 0 to 10"):
            env.load_state_dict(with_buffer(env.state_dict(), buffer, change))

    def test_set_reset_pool_checks_ranges(self):
        env = self.make()
        with pytest.raises(StateError, match=r"state field 'x', state of the pool 1, agent 0: given 11, allowed 0 to 10"):
            env.set_reset_pool({"x": np.array([[1, 2], [11, 2]])})

    def test_ranges_depend_on_the_params_of_each_env(self):
        env = self.make(per_env=("grid_length",), grid_length=[10, 20, 10, 10])
        env.set_state({"x": np.array([[1, 1], [15, 20], [1, 1], [1, 1]])})
        with pytest.raises(StateError, match=r"'x', row 2, agent 0: given 15, allowed 0 to 10"):
            env.set_state({"x": np.full((E, 2), 15)}, np.array([False, True, True, False]))
        with pytest.raises(StateError, match=r"pool 0, agent 0: given 15, allowed 0 to 10"):
            env.set_reset_pool({"x": np.full((3, 2), 15)})


class TestIntegers:
    @pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**32 + 1, 1.5, np.nan, np.inf])
    def test_numbers_that_are_no_int32_raise(self, device, value):
        """A conversion to int32 would change the numbers without an error."""
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=0)
        with pytest.raises(StateError, match=r"'score', row 0: given .*, allowed whole numbers from -2147483648 to 2147483647"):
            env.set_state({"score": np.full(E, value)})

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.float32, np.float64, bool])
    def test_every_dtype_of_integers_is_accepted(self, device, dtype):
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=0)
        env.set_state({"score": np.arange(E).astype(dtype)})
        np.testing.assert_array_equal(host(env.get_state()["score"]), np.arange(E).astype(dtype).astype(np.int32))

    def test_largest_and_smallest_integers(self, device):
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=0)
        env.set_state({"score": np.array([LARGEST, -LARGEST - 1, 0, 1])})
        np.testing.assert_array_equal(host(env.get_state()["score"]), [LARGEST, -LARGEST - 1, 0, 1])


def test_env_without_ranges_accepts_any_number():
    env = VectorEnv(replace(tag_grid_world.ENV, field_ranges=None), 1, device="cpu", output="numpy", num_taggers=1)
    env.reset(seed=0)
    env.set_state({"x": LARGEST})
    np.testing.assert_array_equal(env.get_state()["x"], [[LARGEST] * 2])
