"""`get_state` and `set_state` access the physics state; `state_dict` and `load_state_dict` save and restore the whole state."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.arrays import host, on_device, reset, step
from tests.support.counter_env import make, shared

from gpuvec.errors import StateError

E = 5
MODES = list(AutoresetMode)


def make_mixed(device, **kwargs):
    env = shared("tests/Mixed-v0", E, device=device, **kwargs)
    env.reset(seed=2)
    return env


def run_steps(env, steps, seed=0):
    """Runs random steps and returns their results as one table per step.

    In DISABLED mode, ended rows are reset by a mask.
    """
    rng, run = np.random.default_rng(seed), []
    for _ in range(steps):
        result = step(env, rng.integers(0, 3, (env.num_envs, 2)))
        run.append(np.column_stack(result[:4]))
        if result[4]:
            run.append(np.column_stack([np.where(result[4]["_final_obs"][:, None], result[4]["final_obs"], 0.0)]))
        ended = result[2] | result[3]
        if env.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            run.append(reset(env, options={"reset_mask": ended}))
    return run


def assert_equal_runs(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


class TestGetAndSet:
    def test_state_has_the_declared_fields_and_dtypes(self, device):
        state = host(make_mixed(device).get_state())
        assert {name: (a.dtype, a.shape) for name, a in state.items()} == {
            "level": (np.float32, (E,)),
            "score": (np.int32, (E,)),
            "lit": (np.bool_, (E,)),
        }

    def test_get_state_returns_a_copy(self, device):
        env = make_mixed(device)
        state = env.get_state()
        before = host(state)
        run_steps(env, 3)
        np.testing.assert_array_equal(host(state)["level"], before["level"])

    def test_get_state_returns_the_values_of_set_state(self, device):
        env = make_mixed(device)
        state = {"level": np.linspace(-2, 2, E), "score": np.arange(E), "lit": np.arange(E) % 2 == 0}
        env.set_state(state)
        for name, values in host(env.get_state()).items():
            np.testing.assert_array_equal(values, state[name].astype(values.dtype))

    def test_step_continues_from_the_new_state(self, device):
        env = shared("tests/Counter-v0", E, device=device, maximum=1e9)
        env.reset(seed=0)
        env.set_state({"count": np.arange(E) * 10.0})
        np.testing.assert_array_equal(step(env, np.zeros(E, int))[0][:, 0], np.arange(E) * 10 + 1)

    def test_one_number_sets_one_field_of_all_envs(self, device):
        env = make_mixed(device)
        before = host(env.get_state())
        env.set_state({"score": 7})
        after = host(env.get_state())
        np.testing.assert_array_equal(after["score"], [7] * E)
        np.testing.assert_array_equal(after["level"], before["level"])

    @pytest.mark.parametrize("where", ["host", "device"])
    def test_mask_limits_set_state_to_its_envs(self, device, where):
        env = make_mixed(device)
        before = host(env.get_state())
        mask = np.array([True, False, False, True, False])
        values = {"level": np.full(E, 9.0, np.float32), "lit": np.ones(E, bool)}
        if where == "device":
            values = {name: on_device(env, a) for name, a in values.items()}
        env.set_state(values, mask if where == "host" else on_device(env, mask))
        after = host(env.get_state())
        np.testing.assert_array_equal(after["level"], np.where(mask, 9.0, before["level"]))
        np.testing.assert_array_equal(after["lit"], mask | before["lit"])
        np.testing.assert_array_equal(after["score"], before["score"])

    @pytest.mark.parametrize(
        ("fields", "mask", "error", "message"),
        [
            ({"level": np.zeros(E), "lvl": np.zeros(E)}, None, StateError, r"\['lvl'\]; .* has level, score, lit"),
            ({}, None, StateError, "level, score, lit"),
            ({"level": np.zeros(E), "score": np.zeros(E + 1)}, None, StateError, r"'score' must have shape \(5,\).*\(6,\)"),
            ({"level": np.zeros(E), "score": np.zeros((E, 1))}, None, StateError, r"'score' must have shape \(5,\).*\(5, 1\)"),
            ({"level": np.zeros(E), "score": ["a"] * E}, None, TypeError, r"'score': it must hold .* got .* dtype <U1"),
            ({"level": np.zeros(E, np.longdouble)}, None, TypeError, "'level': it must hold .* got .* dtype float128"),
            ({"level": np.zeros(E, complex)}, None, TypeError, "'level': it must hold .* got .* dtype complex128"),
            ({"level": np.zeros(E)}, np.ones(E + 1, bool), ValueError, r"`mask` must have shape `\(5,\)`"),
            ({"level": np.zeros(E)}, np.ones(E, int), TypeError, "`mask` must have `dtype=np.bool_`"),
        ],
    )
    def test_invalid_state_changes_nothing(self, device, fields, mask, error, message):
        env = make_mixed(device)
        before = host(env.get_state())
        with pytest.raises(error, match=message):
            env.set_state(fields, mask)
        for name, values in host(env.get_state()).items():
            np.testing.assert_array_equal(values, before[name])

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
    def test_set_state_cancels_a_pending_reset(self, device, mode):
        env = shared("tests/Counter-v0", 2, device=device, autoreset_mode=mode, maximum=1.0)
        env.reset(seed=0)
        assert step(env, [1, 1])[2].all()
        env.set_state({"count": np.array([-3.0, 9.0])}, np.array([True, False]))
        obs, reward, *_ = step(env, [4, 4])
        np.testing.assert_array_equal(reward, [4, 0])
        assert obs[0, 0] == -2.0


class TestSaveAndLoad:
    @pytest.mark.parametrize("mode", MODES)
    def test_run_continues_bit_for_bit_after_load(self, device, mode):
        """The state is saved after every step, also while resets are pending."""
        env, num_pending = make_mixed(device, autoreset_mode=mode), 0
        for t in range(12):
            result = step(env, np.full((E, 2), t % 3))
            num_pending += (result[2] | result[3]).any()
            saved = env.state_dict()
            expected = run_steps(env, 8, seed=t)
            env.reset(seed=99)
            run_steps(env, 5)
            env.load_state_dict(saved)
            assert_equal_runs(run_steps(env, 8, seed=t), expected)
            env.load_state_dict(saved)
        assert num_pending > 3

    @pytest.mark.parametrize("seed", [2, [2, 3, 4, 5, 6]])
    def test_load_in_an_env_before_its_first_reset(self, device, seed):
        env = shared("tests/Mixed-v0", E, device=device)
        env.reset(seed=seed)
        run_steps(env, 4)
        saved = env.state_dict()
        expected = run_steps(env, 8)
        other = make("tests/Mixed-v0", E, device=device)
        other.load_state_dict(saved)
        assert other.np_random_seed == env.np_random_seed
        assert_equal_runs(run_steps(other, 8), expected)
        other.close()

    def test_saved_state_includes_params_per_env(self, device):
        env = make("tests/Counter-v0", 3, device=device, maximum=[2.0, 4.0, 6.0])
        env.reset(seed=0)
        saved = env.state_dict()
        env.set_attr("maximum", [7.0, 8.0, 9.0])
        env.load_state_dict(saved)
        assert env.get_attr("maximum") == (2.0, 4.0, 6.0)

    @pytest.mark.parametrize("seed", [3, [3, None, 4, 5, None], np.arange(E)])
    def test_torch_saves_the_state_and_loads_it_with_weights_only(self, device, seed):
        torch = pytest.importorskip("torch")
        env = make_mixed(device, output="torch")
        env.reset(seed=seed)
        run_steps(env, 5)
        file = io.BytesIO()
        torch.save(env.state_dict(), file)
        expected = run_steps(env, 10)
        file.seek(0)
        env.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
        assert_equal_runs(run_steps(env, 10), expected)

    @pytest.mark.parametrize("output", ["numpy", "jax", "dlpack"])
    def test_every_output_loads_its_own_state(self, output):
        if output == "jax":
            pytest.importorskip("jax")
        env = make_mixed("cpu", output=output)
        saved = env.state_dict()
        expected = host(env.step(np.ones((E, 2), int)))
        if output == "numpy":
            saved = pickle.loads(pickle.dumps(saved))  # noqa: S301  # its own bytes
        env.reset(seed=50)
        env.load_state_dict(saved)
        np.testing.assert_array_equal(host(env.step(np.ones((E, 2), int)))[0], expected[0])

    def test_saved_state_includes_a_pending_error(self, device):
        env = make("tests/Counter-v0", 2, device=device, validate=True)
        env.reset(seed=0)
        step(env, [1, 10])
        saved = env.state_dict()
        with pytest.raises(ValueError, match="environment 1"):
            env.check()
        env.load_state_dict(saved)
        with pytest.raises(ValueError, match="environment 1 was given action 10"):
            env.check()
        env.close()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: {}, "a dict with 'buffers' and 'seed'"),
            (lambda s: None, "a dict with 'buffers' and 'seed'"),
            (lambda s: s | {"buffers": None}, "NoneType"),
            (lambda s: s | {"buffers": {k: v for k, v in s["buffers"].items() if k != "start"}}, r"missing \['start'\]"),
            (lambda s: s | {"buffers": s["buffers"] | {"more": np.zeros(2)}}, r"not known \['more'\]"),
            (lambda s: s | {"buffers": s["buffers"] | {"start": np.zeros(E, np.float32)}}, "'start' must have .* dtype int32"),
            (lambda s: s | {"buffers": s["buffers"] | {"start": np.zeros(E + 1, np.int32)}}, r"'start' must have shape \(5,\)"),
        ],
    )
    def test_invalid_saved_state_changes_nothing(self, change, message):
        env = make_mixed("cpu")
        run_steps(env, 3)
        saved = env.state_dict()
        env.reset(seed=8)
        expected = env.state_dict()
        with pytest.raises(StateError, match=message):
            env.load_state_dict(change(saved))
        for name, values in env.state_dict()["buffers"].items():
            np.testing.assert_array_equal(values, expected["buffers"][name])

    def test_saved_state_of_another_env_raises(self, device):
        saved = make_mixed(device).state_dict()
        other = shared("tests/Counter-v0", E, device=device, maximum=1e9)
        with pytest.raises(StateError, match=r"missing .*not known"):
            other.load_state_dict(saved)
        fewer = shared("tests/Mixed-v0", 1, device=device)
        with pytest.raises(StateError, match=r"must have shape \(1,"):
            fewer.load_state_dict(saved)
