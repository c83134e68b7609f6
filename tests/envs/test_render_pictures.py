"""Tests of the pictures of the bundled environments: size, dependence on the state, and similarity to Gymnasium's."""

import os
import sys

import gymnasium
import numpy as np
import pytest

from gpuvec import Canvas
from gpuvec.errors import MissingExtraError
from gpuvec_envs import acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum

pytest.importorskip("PIL", reason="pictures need Pillow, of the extra 'render'")

RED, WHITE = (255, 0, 0), (255, 255, 255)

# Each case has the module, the size of the picture and two states whose pictures differ.
CASES = {
    "CartPole-v1": (cartpole, (400, 600, 3), (0.0, 0.0, 0.0, 0.0), (1.3, 0.0, 0.2, 0.0)),
    "Acrobot-v1": (acrobot, (500, 500, 3), (0.0, 0.0, 0.0, 0.0), (1.0, 0.8, 0.0, 0.0)),
    "MountainCar-v0": (mountain_car, (400, 600, 3), (-0.5, 0.0), (0.3, 0.0)),
    "MountainCarContinuous-v0": (continuous_mountain_car, (400, 600, 3), (-0.9, 0.0), (0.45, 0.0)),
    "Pendulum-v1": (pendulum, (500, 500, 3), (0.3, 0.0), (2.5, 0.0)),
}


def picture(module, state, **params):
    return module.ENV.draw(module.State(*state), module.Params(**params))


class TestCanvas:
    def test_a_new_canvas_is_white(self):
        picture = Canvas(30, 20).array()
        assert (picture.shape, picture.dtype) == ((20, 30, 3), np.uint8)
        assert (picture == 255).all()

    def test_world_coordinates_use_origin_and_scale(self):
        """One unit is 10 pixels, and (0, 0) is 15 pixels from the left and 5 from the bottom: column 15, row 19 - 5."""
        canvas = Canvas(30, 20, scale=10.0, origin=(15.0, 5.0))
        assert canvas.pixel((0.0, 0.0)) == (15, 14)
        assert canvas.pixel((1.0, 1.0)) == (25, 4)

    def test_a_polygon_is_filled(self):
        canvas = Canvas(30, 20, scale=10.0)
        canvas.polygon([(1.0, 0.5), (1.0, 1.0), (2.0, 1.0), (2.0, 0.5)], RED)
        red = np.argwhere((canvas.array() == RED).all(-1))
        assert red.min(0).tolist() == [9, 10]  # row 19 - 10, column 10
        assert red.max(0).tolist() == [14, 20]
        assert len(red) == 6 * 11

    def test_a_circle_has_the_requested_centre_and_radius(self):
        canvas = Canvas(31, 31)
        canvas.circle((15.0, 15.0), 10.0, RED)
        red = (canvas.array() == RED).all(-1)
        assert red.sum() == pytest.approx(np.pi * 10.5**2, rel=0.03)
        assert np.argwhere(red).mean(0) == pytest.approx([15.0, 15.0])

    def test_a_line_connects_its_points(self):
        canvas = Canvas(10, 10)
        canvas.line([(0.0, 0.0), (9.0, 9.0)], RED)
        assert (canvas.array()[range(9, -1, -1), range(10)] == RED).all()
        assert (canvas.array()[0, 0] == WHITE).all()

    def test_arrays_are_copies(self):
        canvas = Canvas(4, 4)
        canvas.array()[:] = 0
        assert (canvas.array() == 255).all()

    def test_without_pillow_the_error_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(MissingExtraError, match=r"gpuvec\[render\]"):
            Canvas(4, 4)


@pytest.mark.parametrize("name", CASES)
class TestPictures:
    def test_a_picture_has_the_declared_size_and_dtype(self, name):
        module, size, state, _ = CASES[name]
        frame = picture(module, state)
        assert (frame.shape, frame.dtype) == (size, np.uint8)
        assert (frame != 255).any()

    def test_the_picture_depends_on_the_state(self, name):
        module, _, state, other = CASES[name]
        np.testing.assert_array_equal(picture(module, state), picture(module, state))
        assert (picture(module, state) != picture(module, other)).any(-1).sum() > 500

    def test_the_picture_resembles_gymnasium(self, name, monkeypatch):
        """Gymnasium smooths edges and lines, so that up to 1 % of the pixels differ."""
        pytest.importorskip("pygame", reason="the oracle draws with pygame, which gpuvec does not need")
        monkeypatch.setitem(os.environ, "SDL_VIDEODRIVER", "dummy")
        module, _, *states = CASES[name]
        env = gymnasium.make(name, render_mode="rgb_array").unwrapped
        env.reset(seed=0)
        for state in states:
            env.state = np.array(state)
            theirs, ours = env.render().astype(int), picture(module, state).astype(int)
            assert (np.abs(theirs - ours).max(-1) > 40).mean() < 0.01
        env.close()

    def test_render_returns_a_picture_of_each_environment(self, name):
        module, _, state, other = CASES[name]
        env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=2, device="cpu", output="numpy", render_mode="rgb_array")
        env.reset(seed=0)
        env.set_state(
            {field: np.float32(pair) for field, pair in zip(module.State._fields, np.transpose([state, other]), strict=True)}
        )
        frames = env.render()
        assert len(frames) == 2
        for frame, rendered_state in zip(frames, (state, other), strict=True):
            np.testing.assert_array_equal(frame, picture(module, np.float32(rendered_state).tolist()))
        assert env.metadata["render_fps"] == gymnasium.spec(name).make().metadata["render_fps"]
        env.close()


def test_the_picture_depends_on_parameters():
    assert (picture(cartpole, (0, 0, 0, 0)) != picture(cartpole, (0, 0, 0, 0), half_length=1.0)).any()
    assert (picture(mountain_car, (0, 0)) != picture(mountain_car, (0, 0), goal_position=0.3)).any()
    assert (picture(acrobot, (1, 1, 0, 0)) != picture(acrobot, (1, 1, 0, 0), length2=2.0)).any()


def test_an_infinite_rail_is_drawn_at_the_default_scale():
    np.testing.assert_array_equal(picture(cartpole, (0.5, 0, 0, 0)), picture(cartpole, (0.5, 0, 0, 0), x_limit=np.inf))
