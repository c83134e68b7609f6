"""`call`, `get_attr`, `set_attr`: parameters of all rows, or of each; and pictures of rows."""

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
        assert not step(env, [1] * E)[2].any()  # counts went on
        assert step(env, [1] * E)[2].all()
        env.set_attr("first", 2.0)
        np.testing.assert_array_equal(reset(env)[:, 0], [2] * E)
        env.close()

    def test_spaces_follow(self):
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
    def test_what_is_refused_changes_nothing(self, name, value, error, message):
        env = shared("gpuvec/CartPole-v1", E)
        before = env.params, env.kernel_version
        with pytest.raises(error, match=message):
            env.set_attr(name, value)
        assert (env.params, env.kernel_version) == before
        with pytest.raises(error, match=message):  # as it is at the construction
            make("gpuvec/CartPole-v1", E, **{name: value})


class TestPerEnv:
    @pytest.mark.slow
    def test_each_row_has_the_physics_of_its_own_value(self, device):
        """Row k against gpuvec's scalar environment with that value; on a GPU the last bits differ."""
        gravity, dt, start = [9.8, 3.7], [0.02, 0.05], {"low": 0.03, "high": 0.03}
        env = make("gpuvec/CartPole-v1", 2, device=device, per_env=("gravity", "dt"), gravity=gravity, dt=dt, **start)
        alone = [gym.make("gpuvec/CartPole-v1", gravity=g, dt=t, **start) for g, t in zip(gravity, dt, strict=True)]
        expected = np.array([one.reset(seed=0)[0] for one in alone])
        np.testing.assert_array_equal(reset(env, seed=0), expected)
        for t in range(8):
            results = [one.step(t % 2) for one in alone]
            obs, reward, terminated, *_ = step(env, [t % 2] * 2)
            np.testing.assert_allclose(obs, [r[0] for r in results], rtol=0, atol=0 if device == "cpu" else 1e-5)
            np.testing.assert_array_equal(reward, [r[1] for r in results])
            np.testing.assert_array_equal(terminated, [r[2] for r in results])
        assert np.abs(obs[0] - obs[1]).max() > 0.1
        env.close()

    def test_lists_and_single_values(self, device):
        env = make("tests/Counter-v0", E, device=device, maximum=[1.0, 2.0, 3.0])
        env.reset(seed=0)
        version = env.kernel_version
        assert step(env, [0] * E)[2].tolist() == [True, False, False]
        for given in ((4.0, 5.0, 1.0), [4, 5, 1], np.array([4.0, 5.0, 1.0])):
            env.set_attr("maximum", given)
            assert env.get_attr("maximum") == env.call("maximum") == (4.0, 5.0, 1.0)
        env.reset()
        assert step(env, [0] * E)[2].tolist() == [False, False, True]
        env.set_attr("maximum", 2.0)
        assert env.get_attr("maximum") == (2.0,) * E
        env.reset()
        assert not step(env, [0] * E)[2].any()
        assert step(env, [0] * E)[2].all()
        assert env.kernel_version == version  # what is stored needs no new kernels
        env.close()

    def test_integers_and_booleans(self, device):
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

    def test_a_parameter_of_resets(self, device):
        """A start reads the row's own value, unless the reset is given another."""
        env = make("tests/Counter-v0", E, device=device, per_env=("first",), first=[0.0, 1.0, 2.0], maximum=4.0)
        np.testing.assert_array_equal(reset(env, seed=0)[:, 0], [0, 1, 2])
        np.testing.assert_array_equal(reset(env, options={"first": 3.0})[:, 0], [3, 3, 3])
        mask = np.array([False, True, True])
        np.testing.assert_array_equal(reset(env, options={"reset_mask": mask})[:, 0], [3, 1, 2])
        env.close()

    @pytest.mark.parametrize(
        ("given", "error", "message"),
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
    def test_lists_that_do_not_fit(self, given, error, message):
        with pytest.raises(error, match=message):
            make("gpuvec/CartPole-v1", E, **given)

    def test_rows_are_checked_each_with_its_own_values(self):
        rows = {"low": [0.1, 0.2, 0.3], "high": [0.2, 0.3, 0.4]}
        env = make("gpuvec/CartPole-v1", E, per_env=("low", "high"), **rows)
        assert env.get_attr("high") == pytest.approx((0.2, 0.3, 0.4))
        env.set_attr("high", [0.5, 0.6, 0.7])
        with pytest.raises(ValueError, match="low and high"):
            env.set_attr("low", [0.1, 0.2, 0.8])
        assert env.get_attr("low") == pytest.approx((0.1, 0.2, 0.3))


@pytest.fixture
def drawing(device):
    """Five counters that stand at 0, 10, 20, 30, 40."""
    env = shared("tests/Counter-v0", 5, device=device, render_mode="rgb_array", maximum=50.0)
    env.reset(seed=0)
    env.set_state({"count": np.arange(5) * 10.0})
    DRAWN.clear()
    return env


class TestRender:
    def test_rows_are_drawn_when_asked_for(self, drawing):
        frames = drawing.render()
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

    def test_chosen_rows_alone(self, drawing):
        frames = drawing.render(rows=np.array([4, 1]))
        assert isinstance(frames, tuple)
        assert [(frame == value).all() for frame, value in zip(frames, (40, 10), strict=True)] == [True, True]
        assert [s.count for s, _ in DRAWN] == [40.0, 10.0]

    def test_all_rows_as_sync_vector_env_does(self, drawing):
        frames = drawing.call("render")
        assert isinstance(frames, tuple)
        assert [int(frame[0, 0, 0]) for frame in frames] == [0, 10, 20, 30, 40]
        assert all(isinstance(frame, np.ndarray) and frame.dtype == np.uint8 for frame in frames)

    def test_frames_show_the_moment_of_the_call(self, drawing):
        frames = drawing.render()
        drawing.set_attr("maximum", 60.0)
        step(drawing, np.zeros(5, int))
        assert (frames[1] == 10).all()
        assert DRAWN[-1][1].maximum == 50.0
        drawing.set_attr("maximum", 50.0)

    def test_parameters_of_the_row_reach_the_picture(self, drawing):
        drawing.set_attr("maximum", [51.0, 52.0, 53.0, 54.0, 55.0])
        drawing.render(rows=[2])
        drawing.set_attr("maximum", 50.0)
        assert DRAWN[0][1].maximum == 53.0

    @pytest.mark.parametrize("output", ["torch", "dlpack", "jax"])
    def test_any_output(self, output):
        if output != "dlpack":
            pytest.importorskip(output)
        env = make("tests/Counter-v0", 2, output=output, render_mode="rgb_array")
        env.reset(seed=0)
        env.set_state({"count": np.array([3.0, 8.0])})
        assert [int(frame[0, 0, 0]) for frame in env.render()] == [3, 8]

    def test_without_a_render_mode(self):
        env = shared("tests/Counter-v0", 5, maximum=1e9)
        env.reset(seed=0)
        with pytest.raises(gym.error.Error, match='render_mode="rgb_array"'):
            env.render()

    @pytest.mark.parametrize(
        ("id", "given", "message"),
        [
            ("tests/Counter-v0", "human", "must be None or 'rgb_array', got 'human'"),
            ("tests/Mixed-v0", "rgb_array", "draws no pictures"),
        ],
    )
    def test_modes_that_there_are_not(self, id, given, message):
        with pytest.raises(ValueError, match=message):
            make(id, 2, render_mode=given)

    @pytest.mark.skipif(not hasattr(gym.wrappers.vector, "RecordVideo"), reason="Gymnasium has it from 1.2 on")
    def test_record_video_of_the_first_row_draws_that_row_alone(self, drawing, tmp_path, monkeypatch):
        """MoviePy, which only writes the file, is stood in for by one that notes the frames."""
        written = []

        class Clip:
            def __init__(self, frames, fps):
                written.append(frames)

            def write_videofile(self, path, logger=None):
                pass

        moviepy = {name: ModuleType(name) for name in ("moviepy", "moviepy.video", "moviepy.video.io")}
        moviepy["moviepy.video.io.ImageSequenceClip"] = SimpleNamespace(ImageSequenceClip=Clip)
        for name, module in moviepy.items():
            monkeypatch.setitem(sys.modules, name, module)
        video = gym.wrappers.vector.RecordVideo(
            drawing, str(tmp_path / "video"), record_first_only=True, video_length=4, step_trigger=lambda t: t == 0
        )
        video.reset(options={"first": 5.0})
        for _ in range(6):
            video.step(on_device(drawing, np.zeros(5, int)))
        assert [int(frame[0, 0, 0]) for frame in written[0]] == [s.count for s, _ in DRAWN]
        assert 4 <= len(DRAWN) <= 5
