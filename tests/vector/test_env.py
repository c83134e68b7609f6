"""Environments satisfy Gymnasium's VectorEnv interface: attributes, spaces, resets by mask, and their lifecycle."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Dict
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from tests.support.arrays import host, on_device, reset, step
from tests.support.bundled_envs import BUNDLED_ENVS
from tests.support.counter_env import make, shared

from gpuvec.vector.wrappers import ClipReward

E = 5


@pytest.mark.parametrize("name", BUNDLED_ENVS)
def test_spaces_are_batches_of_single_spaces(name):
    env = make(f"gpuvec/{name}", E)
    assert "observation_space" not in vars(env)  # built on first use
    assert "action_space" not in vars(env)
    for batched, single in (
        (env.observation_space, env.single_observation_space),
        (env.action_space, env.single_action_space),
    ):
        assert batched == batch_space(single, E)
        batched.seed(1)
        sample = batched.sample()
        assert batched.contains(sample)
        roles = list(single) if isinstance(single, Dict) else [None]
        for role in roles:
            rows, space, part = (x if role is None else x[role] for x in (sample, batched, single))
            assert rows.shape == (E, *part.shape)
            assert not space.contains(rows[:2])


def test_batched_boxes_need_no_memory_per_env():
    env = make("gpuvec/Acrobot-v1", 10**6)
    assert env.observation_space.shape == (10**6, 6)
    assert all(bound.strides[0] == 0 for bound in (env.observation_space.low, env.observation_space.high))


def test_shapes_and_dtypes_of_reset_and_step(device):
    env = shared("tests/Mixed-v0", E, device=device)
    obs, info = env.reset(seed=0)
    assert info == {}
    result = host(env.step(on_device(env, np.zeros((E, 2), np.int64))))
    shapes = [(a.shape, a.dtype) for a in (host(obs), *result[:4])]
    f32 = np.dtype(np.float32)
    assert shapes == [((E, 3), f32), ((E, 3), f32), ((E,), f32), ((E,), np.dtype(bool)), ((E,), np.dtype(bool))]


def test_each_env_has_its_own_attributes():
    env = make("gpuvec/CartPole-v1", 2, autoreset_mode=AutoresetMode.SAME_STEP)
    other = make("gpuvec/CartPole-v1", 3, autoreset_mode="Disabled", render_mode="rgb_array")
    assert env.metadata == {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"], "render_fps": 50}
    assert other.metadata["autoreset_mode"] is other.autoreset_mode is AutoresetMode.DISABLED
    assert make("gpuvec/CartPole-v1", 2).autoreset_mode is AutoresetMode.NEXT_STEP
    assert (env.render_mode, other.render_mode) == (None, "rgb_array")
    assert repr(env) == "VectorEnv(gpuvec/CartPole-v1, num_envs=2)"
    assert env.unwrapped is env
    assert (env.device, env.output, env.max_episode_steps, env.closed) == ("cpu", "numpy", 500, False)


def test_envs_of_one_process_are_independent(device):
    sizes = (1, 3, 40)
    envs = [make("tests/Counter-v0", size, device=device, maximum=100.0 + size) for size in sizes]
    for env in envs:
        reset(env, seed=0)
    for k, env in enumerate(envs):
        for _ in range(k + 1):
            step(env, np.full(env.num_envs, k))
    for k, (env, size) in enumerate(zip(envs, sizes, strict=True)):
        obs, reward, *_ = step(env, np.full(size, 7))
        np.testing.assert_array_equal(obs, np.full((size, 1), k + 2))
        np.testing.assert_array_equal(reward, np.full(size, 7))
        env.close()


@pytest.fixture
def running_env(device):
    """Five counters after three steps."""
    env = shared("tests/Counter-v0", E, device=device, maximum=1e9)
    reset(env, seed=0)
    for _ in range(3):
        step(env, np.ones(E, int))
    return env


class TestResetMask:
    MASK = np.array([True, False, True, False, False])

    def test_other_rows_continue(self, running_env):
        options = {"reset_mask": self.MASK}
        obs = reset(running_env, options=options)
        np.testing.assert_array_equal(obs[:, 0], [0, 3, 0, 3, 3])
        assert options == {"reset_mask": self.MASK}
        assert list(options) == ["reset_mask"]
        np.testing.assert_array_equal(step(running_env, np.ones(E, int))[0][:, 0], [1, 4, 1, 4, 4])

    def test_options_apply_only_to_the_rows_of_the_mask(self, running_env):
        options = {"reset_mask": self.MASK, "first": 40.0}
        np.testing.assert_array_equal(reset(running_env, options=options)[:, 0], [40, 3, 40, 3, 3])
        assert options.keys() == {"reset_mask", "first"}
        np.testing.assert_array_equal(reset(running_env, options={"first": 2.0})[:, 0], [2] * E)
        np.testing.assert_array_equal(reset(running_env)[:, 0], [0] * E)

    def test_strided_masks(self, running_env):
        wide = np.zeros((E, 3), bool)
        wide[:, 1] = self.MASK
        np.testing.assert_array_equal(reset(running_env, options={"reset_mask": wide[:, 1]})[:, 0], [0, 3, 0, 3, 3])

    @pytest.mark.parametrize("library", ["torch", "jax.numpy"])
    def test_masks_of_other_libraries(self, running_env, library):
        xp = pytest.importorskip(library)
        np.testing.assert_array_equal(reset(running_env, options={"reset_mask": xp.asarray(self.MASK)})[:, 0], [0, 3, 0, 3, 3])

    def test_masks_on_the_device_of_the_env(self, running_env):
        mask = on_device(running_env, self.MASK)
        np.testing.assert_array_equal(reset(running_env, options={"reset_mask": mask})[:, 0], [0, 3, 0, 3, 3])

    def test_masks_with_only_the_dlpack_protocol(self, running_env):
        dlpack = shared("tests/Counter-v0", E, device=running_env.device, output="dlpack", maximum=1.0)
        dlpack.reset(seed=0)
        terminated = dlpack.step(on_device(running_env, np.zeros(E, int)))[2]
        np.testing.assert_array_equal(reset(running_env, options={"reset_mask": terminated})[:, 0], [0] * E)

    @pytest.mark.parametrize(
        ("mask", "error", "message"),
        [
            ([True] * E, TypeError, r"`options\['reset_mask'\]` must be a numpy array.*<class 'list'>"),
            (np.ones(E, int), TypeError, r"`options\['reset_mask'\]` must have `dtype=np.bool_`, got int64"),
            (np.ones(E + 1, bool), ValueError, r"`options\['reset_mask'\]` must have shape `\(5,\)`, got \(6,\)"),
            (np.ones((E, 1), bool), ValueError, r"must have shape `\(5,\)`, got \(5, 1\)"),
            (
                np.zeros(E, bool),
                ValueError,
                r"at least one True value, got reset_mask=\[False",
            ),
        ],
    )
    def test_errors_equal_those_of_gymnasium(self, running_env, mask, error, message):
        theirs = gym.make_vec("CartPole-v1", num_envs=E, vectorization_mode="sync")
        theirs.reset(seed=0)
        with pytest.raises((error, AssertionError)):  # assertions up to Gymnasium 1.3
            theirs.reset(options={"reset_mask": mask})
        with pytest.raises(error, match=message):
            running_env.reset(options={"reset_mask": mask})
        np.testing.assert_array_equal(step(running_env, np.ones(E, int))[0][:, 0], [4] * E)  # the failed call changed nothing

    def test_empty_mask_of_torch_on_the_host_raises(self, running_env):
        torch = pytest.importorskip("torch")
        with pytest.raises(ValueError, match="at least one True"):
            running_env.reset(options={"reset_mask": torch.zeros(E, dtype=torch.bool)})

    def test_seeded_reset_by_mask_equals_a_full_reset_on_its_rows(self, device):
        env = shared("tests/Mixed-v0", E, device=device)
        full = {seed: reset(env, seed=seed) for seed in (7, 8)}
        per_env_obs = reset(env, seed=[11, 12, 13, 14, 15])
        for seed, expected in ((7, full[7]), ([11, 12, 13, 14, 15], per_env_obs), ([11, None, 13, None, None], per_env_obs)):
            reset(env, seed=8)
            obs = reset(env, seed=seed, options={"reset_mask": self.MASK})
            np.testing.assert_array_equal(obs[self.MASK], expected[self.MASK])
            np.testing.assert_array_equal(obs[~self.MASK], full[8][~self.MASK])

    def test_unknown_and_invalid_options_raise(self, running_env):
        with pytest.raises(TypeError, match=r"\['frist'\]; this environment has 'reset_mask', 'first'"):
            running_env.reset(options={"frist": 1.0})
        with pytest.raises(ValueError, match=r"\(abc\) could not be converted"):
            running_env.reset(options={"first": "abc"})
        with pytest.raises(ValueError, match="it must be below maximum"):
            running_env.reset(options={"first": 2e9})
        for value in (-np.inf, np.inf, np.nan, "inf"):
            with pytest.raises(ValueError, match=r"reset option 'first' must be finite, got "):
                running_env.reset(options={"first": value})
        np.testing.assert_array_equal(step(running_env, np.ones(E, int))[0][:, 0], [4] * E)  # the failed call changed nothing

    @pytest.mark.parametrize("options", [[1], "reset_mask", 3, {1}])
    def test_options_of_another_type_raise(self, running_env, options):
        for env in (running_env, ClipReward(running_env, 0.0)):
            with pytest.raises(TypeError, match=r"options must be a dict .* or None, got "):
                env.reset(options=options)


class TestLifecycle:
    def test_calls_before_the_first_reset_raise(self):
        env = make("tests/Counter-v0", 2, render_mode="rgb_array")
        for call in (lambda: env.step(np.zeros(2, int)), env.get_state, env.state_dict, env.render):
            with pytest.raises(gym.error.ResetNeeded, match=r"reset\(\)"):
                call()
        with pytest.raises(gym.error.ResetNeeded, match=r"reset\(\)"):
            env.set_state({"count": np.zeros(2)})
        with pytest.raises(gym.error.ResetNeeded, match="without a reset_mask"):
            env.reset(options={"reset_mask": np.array([True, False])})

    def test_first_reset_may_use_a_mask_of_all_rows(self, device):
        """Gymnasium's environments accept it; it is a reset without a mask."""
        mask = np.ones(2, bool)
        gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync").reset(seed=0, options={"reset_mask": mask})
        env, other = (make("tests/Mixed-v0", 2, device=device) for _ in range(2))
        obs = reset(env, seed=3, options={"reset_mask": on_device(env, mask)})
        np.testing.assert_array_equal(obs, reset(other, seed=3))
        for _ in range(3):
            actions = np.ones((2, 2), int)
            np.testing.assert_array_equal(step(env, actions)[0], step(other, actions)[0])

    def test_calls_after_close_raise(self, device):
        env = make("tests/Counter-v0", 2, device=device, render_mode="rgb_array", validate=True)
        obs, _ = env.reset(seed=0)
        saved, frames = env.state_dict(), env.render()
        env.close()
        assert env.closed
        np.testing.assert_array_equal(host(obs), [[0], [0]])  # returned arrays stay valid
        assert frames[1].shape == (4, 6, 3)
        for call in (
            env.reset, lambda: env.step(on_device(env, [0, 0])), env.get_state, lambda: env.set_state({"count": np.zeros(2)}),
            env.state_dict, lambda: env.load_state_dict(saved), env.render, env.check, lambda: env.get_attr("maximum"),
            lambda: env.set_attr("maximum", 3.0), lambda: env.set_attr("first", 1.0),
        ):  # fmt: skip
            with pytest.raises(gym.error.ClosedEnvironmentError, match="closed"):
                call()
        env.close()  # a second call does nothing

    def test_unused_env_can_be_closed(self):
        env = make("tests/Counter-v0", 2)
        env.close()
        assert env.closed
