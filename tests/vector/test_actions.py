"""Actions: every type and layout that is taken, what is refused at once, and what `validate=True` finds."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.arrays import host, on_device, reset, step
from tests.support.counter_env import make, shared

from gpuvec.errors import ActionError, GpuvecError

E = 4


def counter(device, **kwargs):
    env = shared("tests/Counter-v0", E, device=device, maximum=1e9, **kwargs)
    env.reset(seed=0)
    return env


class TestTaken:
    @pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
    def test_integers(self, backend, dtype):
        env = counter(backend)
        np.testing.assert_array_equal(step(env, np.array([0, 3, 9, 5], dtype))[1], [0, 3, 9, 5])

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_floats(self, device, dtype):
        """Pendulum punishes a thousandth of the squared torque."""
        env = shared("gpuvec/Pendulum-v1", E, device=device)
        torque = np.array([[0.0], [1.0], [-2.0], [1.5]], dtype)
        reset(env, seed=0)
        env.set_state({"theta": 0.0, "theta_dot": 0.0})
        np.testing.assert_allclose(step(env, torque)[1], -0.001 * torque[:, 0] ** 2, rtol=1e-5)

    def test_components(self, device):
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=0)
        env.set_state({"score": 0})
        env.step(on_device(env, [[0, 3], [1, 2], [2, 1], [0, 0]]))
        np.testing.assert_array_equal(host(env.get_state()["score"]), [3, 2, 1, 0])

    def test_boxes_are_clipped_by_the_rules(self, device):
        env = shared("gpuvec/Pendulum-v1", E, device=device)
        runs = []
        for torque in (2.0, 1e6):
            env.reset(seed=0)
            runs.append(step(env, np.full((E, 1), torque, np.float32)))
        np.testing.assert_array_equal(runs[0][0], runs[1][0])
        np.testing.assert_array_equal(runs[0][1], runs[1][1])

    @pytest.mark.parametrize("output", ["torch", None])
    def test_rows_that_lie_apart(self, device, output):
        env = counter(device, **({"output": output} if output else {}))
        wide = on_device(env, np.arange(3 * E).reshape(E, 3) % 10)
        before = host(wide)
        np.testing.assert_array_equal(host(env.step(wide[:, 1])[1]), before[:, 1])
        if env.output != "torch":  # which has no negative strides
            np.testing.assert_array_equal(host(env.step(wide[::-1, 2])[1]), before[::-1, 2])

    def test_lists_on_a_cpu(self):
        np.testing.assert_array_equal(step(counter("cpu"), [1, 2, 3, 4])[1], [1, 2, 3, 4])
        np.testing.assert_array_equal(counter("cpu").step((4, 3, 2, 1))[1], [4, 3, 2, 1])

    @pytest.mark.parametrize("library", ["torch", "jax.numpy", "dlpack"])
    @pytest.mark.parametrize("output", ["numpy", "torch"])
    def test_other_producers_on_a_cpu(self, library, output):
        env = counter("cpu", output=output)
        if library == "dlpack":
            given = ExportOnly(np.array([1, 2, 3, 4]))
        else:
            given = pytest.importorskip(library).asarray([1, 2, 3, 4])
        np.testing.assert_array_equal(host(env.step(given)[1]), [1, 2, 3, 4])

    def test_other_producers_on_a_gpu(self, gpu):
        torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
        actions = np.array([1, 2, 3, 4])
        for output, given in (
            ("torch", cupy.asarray(actions)),
            ("cupy", torch.tensor(actions, device=gpu)),
            ("dlpack", torch.tensor(actions, device=gpu)),
            ("torch", ExportOnly(cupy.asarray(actions))),
        ):
            np.testing.assert_array_equal(host(counter(gpu, output=output).step(given)[1]), actions)

    def test_a_network_s_output_with_its_gradient(self):
        torch = pytest.importorskip("torch")
        env = shared("gpuvec/Pendulum-v1", E, output="torch")
        env.reset(seed=0)
        *_, info = env.step(torch.zeros(E, 1, requires_grad=True))
        assert info == {}

    def test_they_are_left_as_they_are(self, device):
        env = counter(device)
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
    def test_shapes(self, device, output, shape):
        env = counter(device, **({"output": output} if output else {}))
        with pytest.raises(ValueError, match=r"actions have shape \(.*\); this environment takes \(4,\)"):
            env.step(on_device(env, np.zeros(shape, int)))
        np.testing.assert_array_equal(step(env, np.zeros(E, int))[0], np.ones((E, 1)))  # that was no step

    def test_a_lone_row_is_still_a_row(self):
        env = shared("tests/Counter-v0", 1, maximum=1e9)
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"shape \(\)"):
            env.step(np.array(3))

    @pytest.mark.parametrize("shape", [(E,), (E, 1), (E, 3)])
    def test_shapes_of_components(self, device, shape):
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"this environment takes \(4, 2\)"):
            env.step(on_device(env, np.zeros(shape, int)))

    @pytest.mark.parametrize("actions", [1, np.int64(1), 0.5, None])
    def test_scalars(self, device, actions):
        with pytest.raises(TypeError, match="actions are"):
            counter(device).step(actions)

    def test_sync_vector_env_refuses_them_alike(self):
        env = gym.make_vec("CartPole-v1", num_envs=E, vectorization_mode="sync")
        env.reset(seed=0)
        with pytest.raises(TypeError):
            env.step(1)
        with pytest.raises(ValueError):
            env.step(np.zeros(E - 1, int))

    @pytest.mark.parametrize("output", ["torch", None])
    @pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int16, np.int8])
    def test_types_of_numbers(self, device, output, dtype):
        env = counter(device, **({"output": output} if output else {}))
        with pytest.raises(TypeError, match=rf"dtype {np.dtype(dtype).name}; .* int32 or int64 or uint8"):
            env.step(on_device(env, np.zeros(E, dtype)))

    def test_other_types(self):
        env = shared("gpuvec/Pendulum-v1", E)
        env.reset(seed=0)
        with pytest.raises(TypeError, match=r"dtype int64; .* float32 or float64"):
            env.step(np.zeros((E, 1), int))
        with pytest.raises(TypeError, match="dtype"):
            counter("cpu").step(["a"] * E)
        with pytest.raises(TypeError, match=">i8"):  # another byte order
            counter("cpu").step(np.array([1, 2, 3, 4], ">i8"))

    def test_memory_of_another_device(self, gpu):
        torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
        for output in ("torch", "cupy"):
            env = counter(gpu, output=output)
            for actions in (np.zeros(E, int), torch.zeros(E, dtype=torch.int64)):
                with pytest.raises(ValueError, match="actions are on the CPU; this environment runs on cuda:0: move them"):
                    env.step(actions)
            with pytest.raises(TypeError, match=r"actions are a list; .* DLPack arrays on cuda:0"):
                env.step([0] * E)
        with pytest.raises(ValueError, match="actions are on cuda:0; this environment runs on the CPU"):
            counter("cpu").step(torch.zeros(E, dtype=torch.int64, device=gpu))
        with pytest.raises((ValueError, TypeError)):
            counter("cpu").step(cupy.zeros(E, int))


@pytest.fixture(scope="module")
def made():
    """Environments with `validate=True`, compiled once."""
    envs = {}

    def get(id, device, **kwargs):
        key = id, device, *kwargs.items()
        if key not in envs:
            envs[key] = make(id, E, device=device, validate=True, **kwargs)
        env = envs[key]
        try:
            env.reset(seed=0)
        except ActionError:  # left over by the test before
            env.reset(seed=0)
        return env

    yield get
    for env in envs.values():
        env.close()


class TestValidated:
    def test_the_lowest_row_at_fault_is_named(self, backend, made):
        env = made("tests/Counter-v0", backend)
        env.check()
        step(env, [9, 10, 0, -1])
        step(env, [0, 0, 0, 0])  # a later step takes nothing back
        with pytest.raises(ActionError, match="environment 1 was given action 10; allowed are 0 to 9"):
            env.check()
        env.check()  # told once

    @pytest.mark.parametrize("how", ["reset", "get_state", "render"])
    def test_whoever_looks_is_told(self, device, made, how):
        env = made("tests/Counter-v0", device, render_mode="rgb_array")
        step(env, [0, 0, 0, -7])
        with pytest.raises(ActionError, match="environment 3 was given action -7; allowed are 0 to 9"):
            getattr(env, how)()
        getattr(env, how)()

    def test_closing_tells_and_closes(self, device):
        env = make("tests/Counter-v0", E, device=device, validate=True)
        env.reset(seed=0)
        step(env, [0, 11, 0, 0])
        with pytest.raises(ActionError, match="environment 1 was given action 11"):
            env.close()
        assert env.closed
        env.close()

    @pytest.mark.parametrize("value", [2**31, 2**32, -(2**40), 2**63 - 1])
    def test_numbers_of_64_bits_are_not_cut(self, device, made, value):
        """Their low 32 bits may look like an action that is allowed."""
        env = made("tests/Counter-v0", device)
        step(env, np.array([0, value, 0, 0]))
        told = "2147483647 or more" if value > 0 else "-2147483648 or less"
        with pytest.raises(ActionError, match=f"environment 1 was given action {told}; allowed are 0 to 9"):
            env.check()

    def test_components(self, device, made):
        env = made("tests/Mixed-v0", device)
        step(env, [[2, 3], [0, 0], [3, 0], [0, 4]])
        with pytest.raises(
            ActionError, match=r"environment 2 was given an action with component 3; .* MultiDiscrete\(\[3 4\]\)"
        ):
            env.check()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite(self, device, made, dtype, value):
        env = made("gpuvec/Pendulum-v1", device)
        step(env, np.array([[1e6], [-1e6], [value], [0.0]], dtype))
        with pytest.raises(ActionError, match="environment 2 was given an action whose component 0 is not finite"):
            env.check()

    def test_what_is_allowed(self, device, made):
        for id, actions in (
            ("tests/Counter-v0", [0, 9, 5, 1]),
            ("tests/Mixed-v0", [[0, 0], [2, 3], [0, 3], [2, 0]]),
            ("gpuvec/Pendulum-v1", np.array([[1e30], [-5.0], [0.0], [2.0]], np.float32)),
        ):
            env = made(id, device)
            step(env, actions)
            env.check()

    def test_stepping_an_ended_env(self, device, made):
        env = made("tests/Counter-v0", device, autoreset_mode=AutoresetMode.DISABLED, maximum=(1, 9, 1, 9))
        step(env, [1, 1, 1, 1])
        env.check()
        step(env, [1, 1, 1, 1])
        with pytest.raises(ActionError, match=r"environment 0 was stepped after its episode ended.*reset_mask"):
            env.check()
        env.reset(options={"reset_mask": np.array([True, False, True, False])})
        step(env, [1, 1, 1, 1])
        env.check()

    def test_the_action_of_an_automatic_reset_is_no_fault(self, device, made):
        env = made("tests/Counter-v0", device, autoreset_mode=AutoresetMode.NEXT_STEP, maximum=1.0)
        step(env, [1, 1, 1, 1])
        step(env, [99, -1, 99, -1])
        env.check()

    def test_errors_are_of_both_kinds(self):
        assert issubclass(ActionError, GpuvecError)
        assert issubclass(ActionError, ValueError)


@pytest.mark.parametrize("value", [-(2**31), 2**31 - 1, 255])
def test_without_validation_memory_is_safe(device, value):
    """Values that index nothing: rows of the next env, and of the same env's next step, are as ever."""
    env = shared("gpuvec/CartPole-v1", E, device=device)
    runs = []
    for actions in ([0, 0, 1, 1], [value, 0, value, 1]):
        env.reset(seed=3)
        runs.append(step(env, actions))
        env.check()  # looks at nothing
    for one, other in zip(*(run[:4] for run in runs), strict=True):
        np.testing.assert_array_equal(one[[1, 3]], other[[1, 3]])
    assert np.isfinite(runs[1][0]).all()
