"""Actions of every accepted type and layout, actions that `step` refuses, and actions that `validate=True` reports."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.arrays import host, on_device, reset, step
from tests.support.counter_env import make, shared

from gpuvec.errors import ActionError, GpuvecError

E = 4


def make_counter(device, **kwargs):
    env = shared("tests/Counter-v0", E, device=device, maximum=1e9, **kwargs)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Predators-v0", "EpidemicEconomy-v0", "RICE-N-v0"])
def test_kernels_are_made_for_the_actions_that_the_space_samples(name):
    """Steps with such actions have the options of the reset, and share its compiled functions."""
    env = gym.make_vec(f"gpuvec/{name}", num_envs=2, device="cpu", output="numpy")
    _, dtype, _ = env.unwrapped.read_actions(env.action_space.sample(), 0)
    assert dtype == env.unwrapped.simulation.options.action_dtype


class TestAccepted:
    @pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
    def test_integer_dtypes(self, backend, dtype):
        env = make_counter(backend)
        np.testing.assert_array_equal(step(env, np.array([0, 3, 9, 5], dtype))[1], [0, 3, 9, 5])

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_float_dtypes(self, device, dtype):
        """The reward of Pendulum contains -0.001 times the squared torque."""
        env = shared("gpuvec/Pendulum-v1", E, device=device)
        torque = np.array([[0.0], [1.0], [-2.0], [1.5]], dtype)
        reset(env, seed=0)
        env.set_state({"theta": 0.0, "theta_dot": 0.0})
        np.testing.assert_allclose(step(env, torque)[1], -0.001 * torque[:, 0] ** 2, rtol=1e-5)

    def test_actions_with_components(self, device):
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=0)
        env.set_state({"score": 0})
        env.step(on_device(env, [[0, 3], [1, 2], [2, 1], [0, 0]]))
        np.testing.assert_array_equal(host(env.get_state()["score"]), [3, 2, 1, 0])

    def test_environment_clips_continuous_actions(self, device):
        env = shared("gpuvec/Pendulum-v1", E, device=device)
        runs = []
        for torque in (2.0, 1e6):
            env.reset(seed=0)
            runs.append(step(env, np.full((E, 1), torque, np.float32)))
        np.testing.assert_array_equal(runs[0][0], runs[1][0])
        np.testing.assert_array_equal(runs[0][1], runs[1][1])

    @pytest.mark.parametrize("output", ["torch", None])
    def test_strided_arrays(self, device, output):
        env = make_counter(device, **({"output": output} if output else {}))
        wide = on_device(env, np.arange(3 * E).reshape(E, 3) % 10)
        before = host(wide)
        np.testing.assert_array_equal(host(env.step(wide[:, 1])[1]), before[:, 1])
        if env.output != "torch":  # torch has no negative strides
            np.testing.assert_array_equal(host(env.step(wide[::-1, 2])[1]), before[::-1, 2])

    def test_lists_on_the_cpu(self):
        np.testing.assert_array_equal(step(make_counter("cpu"), [1, 2, 3, 4])[1], [1, 2, 3, 4])
        np.testing.assert_array_equal(make_counter("cpu").step((4, 3, 2, 1))[1], [4, 3, 2, 1])

    @pytest.mark.parametrize("library", ["torch", "jax.numpy", "dlpack"])
    @pytest.mark.parametrize("output", ["numpy", "torch"])
    def test_arrays_of_other_libraries_on_the_cpu(self, library, output):
        env = make_counter("cpu", output=output)
        if library == "dlpack":
            actions = ExportOnly(np.array([1, 2, 3, 4]))
        else:
            actions = pytest.importorskip(library).asarray([1, 2, 3, 4])
        np.testing.assert_array_equal(host(env.step(actions)[1]), [1, 2, 3, 4])

    def test_arrays_of_other_libraries_on_a_gpu(self, gpu):
        torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
        actions = np.array([1, 2, 3, 4])
        for output, device_actions in (
            ("torch", cupy.asarray(actions)),
            ("cupy", torch.tensor(actions, device=gpu)),
            ("dlpack", torch.tensor(actions, device=gpu)),
            ("torch", ExportOnly(cupy.asarray(actions))),
        ):
            np.testing.assert_array_equal(host(make_counter(gpu, output=output).step(device_actions)[1]), actions)

    def test_tensor_that_requires_grad(self):
        torch = pytest.importorskip("torch")
        env = shared("gpuvec/Pendulum-v1", E, output="torch")
        env.reset(seed=0)
        *_, info = env.step(torch.zeros(E, 1, requires_grad=True))
        assert info == {}

    def test_actions_are_not_changed(self, device):
        env = make_counter(device)
        actions = on_device(env, [1, 2, 3, 4])
        env.step(actions)
        np.testing.assert_array_equal(host(actions), [1, 2, 3, 4])


class ExportOnly:
    """An array that offers the DLPack protocol and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **kwargs):
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class TestRefused:
    @pytest.mark.parametrize("output", ["torch", None])
    @pytest.mark.parametrize("shape", [(E - 1,), (E + 1,), (0,), (E, 1), (1, E), ()])
    def test_wrong_shapes(self, device, output, shape):
        env = make_counter(device, **({"output": output} if output else {}))
        with pytest.raises(ValueError, match=r"actions have shape \(.*\); this environment takes \(4,\)"):
            env.step(on_device(env, np.zeros(shape, int)))
        np.testing.assert_array_equal(step(env, np.zeros(E, int))[0], np.ones((E, 1)))  # the refused call was not a step

    def test_scalar_for_a_single_env(self):
        env = shared("tests/Counter-v0", 1, maximum=1e9)
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"shape \(\)"):
            env.step(np.array(3))

    @pytest.mark.parametrize("shape", [(E,), (E, 1), (E, 3)])
    def test_wrong_shapes_with_components(self, device, shape):
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"this environment takes \(4, 2\)"):
            env.step(on_device(env, np.zeros(shape, int)))

    @pytest.mark.parametrize("actions", [1, np.int64(1), 0.5, None])
    def test_values_that_are_no_array(self, device, actions):
        with pytest.raises(TypeError, match="actions are"):
            make_counter(device).step(actions)

    def test_sync_vector_env_refuses_the_same_actions(self):
        env = gym.make_vec("CartPole-v1", num_envs=E, vectorization_mode="sync")
        env.reset(seed=0)
        with pytest.raises(TypeError):
            env.step(1)
        with pytest.raises(ValueError):
            env.step(np.zeros(E - 1, int))

    @pytest.mark.parametrize("output", ["torch", None])
    @pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int16, np.int8])
    def test_wrong_dtypes(self, device, output, dtype):
        env = make_counter(device, **({"output": output} if output else {}))
        with pytest.raises(TypeError, match=rf"dtype {np.dtype(dtype).name}; .* int32 or int64 or uint8"):
            env.step(on_device(env, np.zeros(E, dtype)))

    @pytest.mark.parametrize("values", [["a"] * E, [1j] * E, np.zeros(E, np.longdouble), [None] * E])
    def test_values_that_are_no_numbers(self, device, values):
        env = make_counter(device, output="numpy")  # takes lists on a GPU too
        env.reset(seed=0)
        with pytest.raises(TypeError, match=r"actions have dtype .*; this environment takes int32 or int64 or uint8"):
            env.step(values)

    def test_wrong_dtypes_of_continuous_actions_and_lists(self):
        env = shared("gpuvec/Pendulum-v1", E)
        env.reset(seed=0)
        with pytest.raises(TypeError, match=r"dtype int64; .* float32 or float64"):
            env.step(np.zeros((E, 1), int))
        with pytest.raises(TypeError, match="dtype"):
            make_counter("cpu").step(["a"] * E)
        with pytest.raises(TypeError, match=">i8"):  # another byte order
            make_counter("cpu").step(np.array([1, 2, 3, 4], ">i8"))

    def test_arrays_on_another_device(self, gpu):
        torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
        for output in ("torch", "cupy"):
            env = make_counter(gpu, output=output)
            for actions in (np.zeros(E, int), torch.zeros(E, dtype=torch.int64)):
                with pytest.raises(ValueError, match="actions are on the CPU; this environment runs on cuda:0: move them"):
                    env.step(actions)
            with pytest.raises(TypeError, match=r"actions are a list; .* DLPack arrays on cuda:0"):
                env.step([0] * E)
        with pytest.raises(ValueError, match="actions are on cuda:0; this environment runs on the CPU"):
            make_counter("cpu").step(torch.zeros(E, dtype=torch.int64, device=gpu))
        with pytest.raises((ValueError, TypeError)):
            make_counter("cpu").step(cupy.zeros(E, int))


@pytest.fixture(scope="module")
def make_validated():
    """A function that returns a reset environment with `validate=True`, compiled once for all tests."""
    envs = {}

    def get(id, device, **kwargs):
        key = id, device, *kwargs.items()
        if key not in envs:
            envs[key] = make(id, E, device=device, validate=True, **kwargs)
        env = envs[key]
        try:
            env.reset(seed=0)
        except ActionError:  # an error that the previous test left
            env.reset(seed=0)
        return env

    yield get
    for env in envs.values():
        env.close()


class TestValidated:
    def test_error_names_the_first_invalid_env(self, backend, make_validated):
        env = make_validated("tests/Counter-v0", backend)
        env.check()
        step(env, [9, 10, 0, -1])
        step(env, [0, 0, 0, 0])  # a later valid step does not clear the error
        with pytest.raises(ActionError, match="environment 1 was given action 10; allowed are 0 to 9"):
            env.check()
        env.check()  # the error is reported once

    @pytest.mark.parametrize("method", ["reset", "get_state", "render"])
    def test_methods_that_synchronize_raise_the_error(self, device, make_validated, method):
        env = make_validated("tests/Counter-v0", device, render_mode="rgb_array")
        step(env, [0, 0, 0, -7])
        with pytest.raises(ActionError, match="environment 3 was given action -7; allowed are 0 to 9"):
            getattr(env, method)()
        getattr(env, method)()

    def test_close_raises_the_error_and_closes(self, device):
        env = make("tests/Counter-v0", E, device=device, validate=True)
        env.reset(seed=0)
        step(env, [0, 11, 0, 0])
        with pytest.raises(ActionError, match="environment 1 was given action 11"):
            env.close()
        assert env.closed
        env.close()

    @pytest.mark.parametrize("value", [2**31, 2**32, -(2**40), 2**63 - 1])
    def test_64_bit_actions_are_not_truncated(self, device, make_validated, value):
        """Their low 32 bits may look like an action that is allowed."""
        env = make_validated("tests/Counter-v0", device)
        step(env, np.array([0, value, 0, 0]))
        reported = "2147483647 or more" if value > 0 else "-2147483648 or less"
        with pytest.raises(ActionError, match=f"environment 1 was given action {reported}; allowed are 0 to 9"):
            env.check()

    def test_actions_with_components(self, device, make_validated):
        env = make_validated("tests/Mixed-v0", device)
        step(env, [[2, 3], [0, 0], [3, 0], [0, 4]])
        with pytest.raises(
            ActionError, match=r"environment 2 was given an action with component 3; .* MultiDiscrete\(\[3 4\]\)"
        ):
            env.check()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_nonfinite_actions_raise(self, device, make_validated, dtype, value):
        env = make_validated("gpuvec/Pendulum-v1", device)
        step(env, np.array([[1e6], [-1e6], [value], [0.0]], dtype))
        with pytest.raises(ActionError, match="environment 2 was given an action whose component 0 is not finite"):
            env.check()

    def test_valid_actions_pass(self, device, make_validated):
        for id, actions in (
            ("tests/Counter-v0", [0, 9, 5, 1]),
            ("tests/Mixed-v0", [[0, 0], [2, 3], [0, 3], [2, 0]]),
            ("gpuvec/Pendulum-v1", np.array([[1e30], [-5.0], [0.0], [2.0]], np.float32)),
        ):
            env = make_validated(id, device)
            step(env, actions)
            env.check()

    def test_step_after_the_episode_end_raises(self, device, make_validated):
        env = make_validated("tests/Counter-v0", device, autoreset_mode=AutoresetMode.DISABLED, maximum=(1, 9, 1, 9))
        step(env, [1, 1, 1, 1])
        env.check()
        step(env, [1, 1, 1, 1])
        with pytest.raises(ActionError, match=r"environment 0 was stepped after its episode ended.*reset_mask"):
            env.check()
        env.reset(options={"reset_mask": np.array([True, False, True, False])})
        step(env, [1, 1, 1, 1])
        env.check()

    def test_action_of_an_automatic_reset_is_not_checked(self, device, make_validated):
        env = make_validated("tests/Counter-v0", device, autoreset_mode=AutoresetMode.NEXT_STEP, maximum=1.0)
        step(env, [1, 1, 1, 1])
        step(env, [99, -1, 99, -1])
        env.check()

    def test_action_error_is_a_gpuvec_error_and_a_value_error(self):
        assert issubclass(ActionError, GpuvecError)
        assert issubclass(ActionError, ValueError)


@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1, 255])
def test_invalid_actions_without_validation_change_no_other_env(device, value):
    """Out-of-range actions must not write to memory of other envs, whose results stay the same."""
    env = shared("gpuvec/CartPole-v1", E, device=device)
    runs = []
    for actions in ([0, 0, 1, 1], [value, 0, value, 1]):
        env.reset(seed=3)
        runs.append(step(env, actions))
        env.check()  # without validation, nothing is checked
    for one, other in zip(*(run[:4] for run in runs), strict=True):
        np.testing.assert_array_equal(one[[1, 3]], other[[1, 3]])
    assert np.isfinite(runs[1][0]).all()
