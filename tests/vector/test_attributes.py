"""`call`, `get_attr` and `set_attr` access parameters of all envs or of each env, and `render` returns frames of envs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from tests.support.arrays import host, on_device, reset, step
from tests.support.counter_env import DRAWN, make, shared

from gpuvec.errors import UnknownParameterError

E = 3


class TestAttributes:
    def test_parameters_and_attributes_of_all_rows(self, device):
        env = shared("gpuvec/CartPole-v1", E, device=device)
        assert env.call("gravity") == env.get_attr("gravity") == (9.8,) * E
        assert env.get_attr("sutton_barto_reward") == (False,) * E
        assert env.get_attr("render_mode") == env.call("render_mode") == (None,) * E
        with pytest.raises(AttributeError, match=r"'gravty'; parameters: .*gravity"):
            env.get_attr("gravty")
        with pytest.raises(AttributeError, match="'state_dict' is a method of all rows together"):
            env.call("state_dict")

    def test_one_value_rebuilds_the_kernels(self, device):
        env = make("tests/Counter-v0", E, device=device, per_env=())
        env.reset(seed=0)
        step(env, [1] * E)
        version = env.kernel_version
        env.set_attr("maximum", 3.0)
        assert env.kernel_version == version + 1
        assert env.get_attr("maximum") == (3.0,) * E
        assert env.params.maximum == 3.0
        assert not step(env, [1] * E)[2].any()  # the counts continued
        assert step(env, [1] * E)[2].all()
        env.set_attr("first", 2.0)
        np.testing.assert_array_equal(reset(env)[:, 0], [2] * E)
        env.close()

    def test_spaces_follow_params(self):
        env = make("gpuvec/Pendulum-v1", E)
        before = env.action_space, env.observation_space
        env.set_attr("max_torque", 5.0)
        env.set_attr("max_speed", 3)
        assert env.single_action_space.high == env.action_space.high[2] == 5.0
        assert env.observation_space.high[1, 2] == 3.0
        assert (before[0].high[0, 0], before[1].high[0, 2]) == (2.0, 8.0)

    @pytest.mark.parametrize(
        ("name", "value", "error", "message"),
        [
            ("gravty", 1.0, UnknownParameterError, "'gravty'; did you mean 'gravity'"),
            ("gravity", [1.0, 2.0, 3.0], TypeError, r"'gravity' was given 3 values; .*per_env=\('gravity',\)"),
            ("gravity", np.ones(E), TypeError, r"per_env=\('gravity',\)"),
            ("gravity", "9", TypeError, r"'gravity' must be a float, got '9' \(str\)"),
            ("gravity", True, TypeError, "'gravity' must be a float"),
            ("sutton_barto_reward", 1, TypeError, "must be a bool"),
            ("gravity", float("nan"), ValueError, "'gravity' must be a number"),
            ("dt", 0.0, ValueError, "dt is 0.0; it must be greater than 0"),
            ("low", 1.0, ValueError, "low and high"),
        ],
    )
    def test_invalid_value_changes_nothing(self, name, value, error, message):
        env = shared("gpuvec/CartPole-v1", E)
        before = env.params, env.kernel_version
        with pytest.raises(error, match=message):
            env.set_attr(name, value)
        assert (env.params, env.kernel_version) == before
        with pytest.raises(error, match=message):  # the constructor raises the same error
            make("gpuvec/CartPole-v1", E, **{name: value})


class TestPerEnv:
    def test_each_env_uses_its_own_params(self, device):
        """Row k equals the scalar environment with the same values; on a GPU the last bits differ."""
        gravity, dt, start = [9.8, 3.7], [0.02, 0.05], {"low": 0.03, "high": 0.03}
        env = make("gpuvec/CartPole-v1", 2, device=device, per_env=("gravity", "dt"), gravity=gravity, dt=dt, **start)
        scalar_envs = [gym.make("gpuvec/CartPole-v1", gravity=g, dt=t, **start) for g, t in zip(gravity, dt, strict=True)]
        expected = np.array([one.reset(seed=0)[0] for one in scalar_envs])
        np.testing.assert_array_equal(reset(env, seed=0), expected)
        for t in range(8):
            results = [one.step(t % 2) for one in scalar_envs]
            obs, reward, terminated, *_ = step(env, [t % 2] * 2)
            np.testing.assert_allclose(obs, [r[0] for r in results], rtol=0, atol=0 if device == "cpu" else 1e-5)
            np.testing.assert_array_equal(reward, [r[1] for r in results])
            np.testing.assert_array_equal(terminated, [r[2] for r in results])
        assert np.abs(obs[0] - obs[1]).max() > 0.1
        env.close()

    def test_values_per_env_and_one_value_for_all(self, device):
        env = make("tests/Counter-v0", E, device=device, maximum=[1.0, 2.0, 3.0])
        env.reset(seed=0)
        version = env.kernel_version
        assert step(env, [0] * E)[2].tolist() == [True, False, False]
        for values in ((4.0, 5.0, 1.0), [4, 5, 1], np.array([4.0, 5.0, 1.0])):
            env.set_attr("maximum", values)
            assert env.get_attr("maximum") == env.call("maximum") == (4.0, 5.0, 1.0)
        env.reset()
        assert step(env, [0] * E)[2].tolist() == [False, False, True]
        env.set_attr("maximum", 2.0)
        assert env.get_attr("maximum") == (2.0,) * E
        env.reset()
        assert not step(env, [0] * E)[2].any()
        assert step(env, [0] * E)[2].all()
        assert env.kernel_version == version  # stored parameters need no new kernels
        env.close()

    def test_integer_and_boolean_params_per_env(self, device):
        env = make(
            "tests/Mixed-v0", E, device=device, per_env=("bonus", "dark", "noise"), bonus=[0, 5, 10], dark=[True, False, True]
        )
        env.reset(seed=0)
        env.set_state({"score": 0})
        lit = np.array([step(env, np.zeros((E, 2), int))[0][:, 2] for _ in range(5)])
        np.testing.assert_array_equal(lit.any(0)[[0, 2]], [False, False])
        assert env.get_attr("bonus") == (0, 5, 10)
        assert env.get_attr("dark") == (True, False, True)
        assert env.get_attr("noise") == (1.0,) * E
        env.reset(seed=0)
        env.set_state({"score": 0})
        env.step(on_device(env, np.zeros((E, 2), int)))
        np.testing.assert_array_equal(host(env.get_state()["score"]), [0, 5, 10])
        env.close()

    def test_param_per_env_in_resets(self, device):
        """A reset uses the value of the env, unless its options contain another value."""
        env = make("tests/Counter-v0", E, device=device, per_env=("first",), first=[0.0, 1.0, 2.0], maximum=4.0)
        np.testing.assert_array_equal(reset(env, seed=0)[:, 0], [0, 1, 2])
        np.testing.assert_array_equal(reset(env, options={"first": 3.0})[:, 0], [3, 3, 3])
        mask = np.array([False, True, True])
        np.testing.assert_array_equal(reset(env, options={"reset_mask": mask})[:, 0], [3, 1, 2])
        env.close()

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"gravity": [1.0] * E}, TypeError, r"'gravity' was given 3 values; .*per_env=\('gravity',\)"),
            ({"per_env": ("gravity",), "gravity": [1.0, 2.0]}, ValueError, "Got `2` values for 3 environments"),
            ({"per_env": ("gravity",), "gravity": [1.0, "x", 2.0]}, TypeError, "'gravity' must be a float, got 'x'"),
            ({"per_env": ("gravty",)}, UnknownParameterError, "'gravty'; did you mean 'gravity'"),
            ({"per_env": "gravity"}, TypeError, r"write per_env=\('gravity',\)"),
            ({"per_env": ("dt",), "dt": [0.1, 0.0, 0.1]}, ValueError, "dt is 0.0"),
            ({"per_env": ("low",), "low": [0.0, 0.1, 0.0]}, ValueError, "low and high"),
        ],
    )
    def test_invalid_params_per_env_raise(self, arguments, error, message):
        with pytest.raises(error, match=message):
            make("gpuvec/CartPole-v1", E, **arguments)

    def test_params_of_each_env_are_validated(self):
        rows = {"low": [0.1, 0.2, 0.3], "high": [0.2, 0.3, 0.4]}
        env = make("gpuvec/CartPole-v1", E, per_env=("low", "high"), **rows)
        assert env.get_attr("high") == pytest.approx((0.2, 0.3, 0.4))
        env.set_attr("high", [0.5, 0.6, 0.7])
        with pytest.raises(ValueError, match="low and high"):
            env.set_attr("low", [0.1, 0.2, 0.8])
        assert env.get_attr("low") == pytest.approx((0.1, 0.2, 0.3))


@pytest.fixture
def rendering_env(device):
    """Five counters with the counts 0, 10, 20, 30 and 40."""
    env = shared("tests/Counter-v0", 5, device=device, render_mode="rgb_array", maximum=50.0)
    env.reset(seed=0)
    env.set_state({"count": np.arange(5) * 10.0})
    DRAWN.clear()
    return env


class TestRender:
    def test_frames_are_rendered_on_access(self, rendering_env):
        frames = rendering_env.render()
        assert isinstance(frames, Sequence)
        assert len(frames) == 5
        assert DRAWN == []
        assert (frames[3] == 30).all()
        assert [s.count for s, _ in DRAWN] == [30.0]
        assert (frames[-1] == 40).all()
        assert [frame[0, 0, 0] for frame in frames[1:3]] == [10, 20]
        assert [frame.shape for frame in frames] == [(4, 6, 3)] * 5
        with pytest.raises(IndexError, match="row 5 of 5"):
            frames[5]

    def test_render_of_selected_rows(self, rendering_env):
        frames = rendering_env.render(rows=np.array([4, 1]))
        assert isinstance(frames, tuple)
        assert [(frame == value).all() for frame, value in zip(frames, (40, 10), strict=True)] == [True, True]
        assert [s.count for s, _ in DRAWN] == [40.0, 10.0]

    def test_call_render_returns_all_frames(self, rendering_env):
        frames = rendering_env.call("render")
        assert isinstance(frames, tuple)
        assert [int(frame[0, 0, 0]) for frame in frames] == [0, 10, 20, 30, 40]
        assert all(isinstance(frame, np.ndarray) and frame.dtype == np.uint8 for frame in frames)

    def test_frames_show_the_state_at_the_call(self, rendering_env):
        frames = rendering_env.render()
        rendering_env.set_attr("maximum", 60.0)
        step(rendering_env, np.zeros(5, int))
        assert (frames[1] == 10).all()
        assert DRAWN[-1][1].maximum == 50.0
        rendering_env.set_attr("maximum", 50.0)

    def test_render_uses_the_params_of_the_row(self, rendering_env):
        rendering_env.set_attr("maximum", [51.0, 52.0, 53.0, 54.0, 55.0])
        rendering_env.render(rows=[2])
        rendering_env.set_attr("maximum", 50.0)
        assert DRAWN[0][1].maximum == 53.0

    @pytest.mark.parametrize("output", ["torch", "dlpack", "jax"])
    def test_render_with_any_output(self, output):
        if output != "dlpack":
            pytest.importorskip(output)
        env = make("tests/Counter-v0", 2, output=output, render_mode="rgb_array")
        env.reset(seed=0)
        env.set_state({"count": np.array([3.0, 8.0])})
        assert [int(frame[0, 0, 0]) for frame in env.render()] == [3, 8]

    def test_render_without_a_render_mode_raises(self):
        env = shared("tests/Counter-v0", 5, maximum=1e9)
        env.reset(seed=0)
        with pytest.raises(gym.error.Error, match='render_mode="rgb_array"'):
            env.render()

    @pytest.mark.parametrize(
        ("id", "mode", "message"),
        [
            ("tests/Counter-v0", "human", "must be None or 'rgb_array', got 'human'"),
            ("tests/Mixed-v0", "rgb_array", "draws no pictures"),
        ],
    )
    def test_unsupported_render_modes_raise(self, id, mode, message):
        with pytest.raises(ValueError, match=message):
            make(id, 2, render_mode=mode)

    @pytest.mark.skipif(not hasattr(gym.wrappers.vector, "RecordVideo"), reason="RecordVideo needs Gymnasium 1.2")
    def test_record_video_renders_only_the_first_row(self, rendering_env, tmp_path, monkeypatch):
        """A stub that records the frames replaces MoviePy, which writes the file."""
        clips = []

        class Clip:
            def __init__(self, frames, fps):
                clips.append(frames)

            def write_videofile(self, path, logger=None):
                pass

        moviepy = {name: ModuleType(name) for name in ("moviepy", "moviepy.video", "moviepy.video.io")}
        moviepy["moviepy.video.io.ImageSequenceClip"] = SimpleNamespace(ImageSequenceClip=Clip)
        for name, module in moviepy.items():
            monkeypatch.setitem(sys.modules, name, module)
        video = gym.wrappers.vector.RecordVideo(
            rendering_env, str(tmp_path / "video"), record_first_only=True, video_length=4, step_trigger=lambda t: t == 0
        )
        video.reset(options={"first": 5.0})
        for _ in range(6):
            video.step(on_device(rendering_env, np.zeros(5, int)))
        assert [int(frame[0, 0, 0]) for frame in clips[0]] == [s.count for s, _ in DRAWN]
        assert 4 <= len(DRAWN) <= 5
