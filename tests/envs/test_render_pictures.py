"""Tests of the pictures of the bundled environments: size, dependence on the state, and similarity to Gymnasium's."""

import os
import sys

import gymnasium
import numpy as np
import pytest

from gpuvec import Canvas
from gpuvec.drawing.marks import GREY, ROLE_COLOURS
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
    return module.ENV.draw(module.State(*state), module.Params(**params)).array()


class TestCanvas:
    def test_a_new_canvas_is_white(self):
        picture = Canvas(30, 20).array()
        assert (picture.shape, picture.dtype) == ((20, 30, 3), np.uint8)
        assert (picture == 255).all()

    def test_world_coordinates_use_origin_and_scale(self):
        """One unit is 10 pixels, and (0, 0) is 15 pixels from the left and 5 from the bottom."""
        canvas = Canvas(30, 20, scale=10.0, origin=(15.0, 5.0))
        assert canvas.positions([(0.0, 0.0), (1.0, 1.0)]).tolist() == [[15.0, 15.0], [25.0, 5.0]]

    def test_a_polygon_is_filled(self):
        canvas = Canvas(30, 20, scale=10.0)
        canvas.polygon([(1.0, 0.5), (1.0, 1.0), (2.0, 1.0), (2.0, 0.5)], RED)
        red = np.argwhere((canvas.array() == RED).all(-1))
        assert red.min(0).tolist() == [10, 10]  # row and column of the upper left corner
        assert red.max(0).tolist() == [14, 19]
        assert len(red) == 5 * 10

    def test_a_circle_has_the_requested_centre_and_radius(self):
        canvas = Canvas(31, 31)
        canvas.circle((15.5, 15.5), 10.0, RED)
        cover = 1.0 - canvas.array()[..., 1] / 255.0  # pixels at the edge are partly covered
        assert cover.sum() == pytest.approx(np.pi * 10.0**2, rel=0.03)
        assert (np.argwhere(cover) * cover[cover > 0.0, None]).sum(0) / cover.sum() == pytest.approx([15.0, 15.0], abs=0.1)

    def test_a_line_connects_its_points(self):
        canvas = Canvas(10, 10)
        canvas.line([(0.0, 0.0), (10.0, 10.0)], RED, width=2)
        assert (canvas.array()[range(8, 0, -1), range(1, 9)] == RED).all()
        assert (canvas.array()[0, 0] == WHITE).all()

    def test_arrays_are_copies(self):
        canvas = Canvas(4, 4)
        canvas.array()[:] = 0
        assert (canvas.array() == 255).all()

    def test_without_pillow_the_error_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        canvas = Canvas(4, 4)
        with pytest.raises(MissingExtraError, match=r"pip install .*\[render\]"):
            canvas.array()

    def test_cells_fill_the_picture(self):
        canvas = Canvas(6, 4)
        canvas.cells(np.array([[0, 1, 0], [1, 1, 0]]), (WHITE, RED))
        expected = np.repeat(np.repeat(np.array([[0, 1, 0], [1, 1, 0]], bool), 2, 0), 2, 1)
        np.testing.assert_array_equal((canvas.array() == RED).all(-1), expected)

    def test_agents_have_the_colours_of_their_roles_and_inactive_ones_are_grey(self):
        canvas = Canvas(80, 20)
        x, y = np.array([10.0, 30.0, 50.0, np.nan]), np.full(4, 10.0)
        canvas.agents(x, y, 6.0, role=np.array([0, 1, 1, 0]), names=("a", "b"), active=np.array([True, True, False, True]))
        centres = canvas.array()[10, [10, 30, 50]].tolist()
        assert centres == [list(ROLE_COLOURS[0]), list(ROLE_COLOURS[1]), list(GREY)]
        assert (canvas.array()[:, 60:] == 255).all()

    def test_a_symbol_points_along_its_heading(self):
        """The tip of a dart is at 1.2 radii, up for a quarter of a turn."""
        for heading, tip, tail in ((0.0, (20, 31), (20, 8)), (np.pi / 2.0, (8, 20), (31, 20))):
            canvas = Canvas(40, 40)
            canvas.agents(np.array([20.0]), np.array([20.0]), 10.0, heading=np.array([heading]))
            picture = canvas.array()
            assert (picture[tip] != 255).any()
            assert (picture[tail] == 255).all()

    def test_wrong_agents_and_cells_are_refused(self):
        canvas = Canvas(4, 4)
        with pytest.raises(ValueError, match=r"x has 2 agents, but \{'y': 3\}"):
            canvas.agents(np.zeros(2), np.zeros(3), 1.0)
        with pytest.raises(ValueError, match=r"roles are from 0 to 1, and the names are \('agent',\)"):
            canvas.agents(np.zeros(2), np.zeros(2), 1.0, role=np.array([0, 1]))
        with pytest.raises(ValueError, match=r"values from 0 to 2; they must be .* from 0 to 1"):
            canvas.cells(np.array([[0, 2]]), (WHITE, RED))
        assert not canvas.marks


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
