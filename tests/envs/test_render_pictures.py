"""Tests of the pictures of the bundled environments: size, dependence on the state, and similarity to Gymnasium's."""

import os
import sys

import gymnasium
import numpy as np
import pytest

from gpuvec import Canvas
from gpuvec.drawing.marks import GREY, ROLE_COLOURS, Agents, Circle, Text
from gpuvec.errors import MissingExtraError
from gpuvec_envs import acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum, pictures, predators, simple_spread

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

    def test_a_text_is_where_its_alignment_says(self):
        for align, columns in (("left", (100, 200)), ("center", (50, 150)), ("right", (0, 100))):
            canvas = Canvas(200, 40)
            canvas.text((100.0, 20.0), "50 °C", 20, RED, align)
            rows, inked = np.nonzero((canvas.array() != 255).any(-1))
            assert 30 < np.ptp(inked) < 100
            assert columns[0] <= inked.min() <= inked.max() <= columns[1]
            assert np.mean([rows.min(), rows.max()]) == pytest.approx(20.0, abs=3.0)
            if align == "center":
                assert np.mean([inked.min(), inked.max()]) == pytest.approx(100.0, abs=2.0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("a\nb",), "one line of at most 200"), (("x" * 201,), "one line of at most 200"), ((3,), "one line of at most"),
            (("a", 0), "above 0"), (("a", float("nan")), "above 0"), (("a", 14, RED, "top"), "align is 'top'"),
        ],
    )  # fmt: skip
    def test_wrong_texts_are_refused(self, arguments, message):
        canvas = Canvas(4, 4)
        with pytest.raises(ValueError, match=message):
            canvas.text((0.0, 0.0), *arguments)
        assert not canvas.marks

    def test_a_circle_is_drawn_to_scale(self):
        """Agents with the symbol of a circle cover the area of their radius, in their own colour."""
        canvas = Canvas(81, 81, 20.0)
        canvas.agents(np.array([2.0]), np.array([2.0]), 1.5, symbols=("circle",), colours=(RED,))
        assert (255 - canvas.array()[..., 1]).sum() / 255 == pytest.approx(np.pi * 30.0**2, rel=0.01)

    def test_wrong_symbols_and_colours_are_refused(self):
        canvas, x = Canvas(4, 4), np.zeros(1)
        for arguments, message in (
            ({"symbols": ("star",)}, "one for each role, of dart"),
            ({"symbols": ("disc", "disc")}, "there must be 1"),
            ({"colours": (RED, RED)}, "2 colours and 1 roles"),
        ):
            with pytest.raises(ValueError, match=message):
                canvas.agents(x, x, 1.0, **arguments)
        assert not canvas.marks

    def test_wrong_agents_and_cells_are_refused(self):
        canvas = Canvas(4, 4)
        with pytest.raises(ValueError, match=r"x has 2 agents, but \{'y': 3\}"):
            canvas.agents(np.zeros(2), np.zeros(3), 1.0)
        with pytest.raises(ValueError, match=r"roles are from 0 to 1, and the names are \('agent',\)"):
            canvas.agents(np.zeros(2), np.zeros(2), 1.0, role=np.array([0, 1]))
        with pytest.raises(ValueError, match=r"values from 0 to 2; they must be .* from 0 to 1"):
            canvas.cells(np.array([[0, 2]]), (WHITE, RED))
        assert not canvas.marks


# States at the limits that pictures show: the ends of the track, the flag, and the line that the tip must cross.
LIMITS = {
    "CartPole-v1": [(2.4, 0.0, 0.0, 0.0), (-2.4, 0.0, 0.0, 0.0)],
    "Acrobot-v1": [(np.pi / 2, np.pi / 2, 0.0, 0.0)],
    "MountainCar-v0": [(0.5, 0.0), (-1.2, 0.0)],
    "MountainCarContinuous-v0": [(0.45, 0.0), (-1.2, 0.0)],
    "Pendulum-v1": [(0.0, 0.0)],
}


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
        for state in [*states, *LIMITS[name]]:
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


def test_the_torque_of_the_last_step_is_shown():
    """`render` shows the action that led to the state: none after a reset, and none of a row that began again."""
    env = gymnasium.make_vec(
        "gpuvec/Pendulum-v1", num_envs=2, device="cpu", output="numpy", render_mode="rgb_array", max_episode_steps=2
    )
    env.reset(seed=0)
    torque = np.float32([[1.5], [-5.0]])

    def expected(row, action):
        state = pendulum.State(*(float(values[row]) for values in env.get_state().values()))
        return pendulum.ENV.draw(state, pendulum.Params(), action).array()

    for is_first in (True, False, False, True):
        for row in range(2):
            np.testing.assert_array_equal(env.render()[row], expected(row, None if is_first else torque[row]))
        env.step(torque)
    env.close()
    texts = [pendulum.ENV.draw(pendulum.State(0.0, 0.0), pendulum.Params(), x).marks[-1].text for x in torque]
    assert texts == ["torque +1.50 N m", "torque -2.00 N m"]


def test_an_arrow_turns_with_the_torque():
    """A positive torque accelerates the angle, which is counter-clockwise: from the top to the left."""
    for torque, side in ((2.0, slice(0, 250)), (-2.0, slice(250, 500))):
        blue = (pendulum.ENV.draw(pendulum.State(np.pi, 0.0), pendulum.Params(), torque).array() == pictures.BLUE).all(-1)
        assert blue[:, side].sum() > 10 * blue.sum() / 11 > 100


def test_bodies_have_the_radii_of_the_rules():
    position = np.array([[0.0, 0.0], [-0.5, 0.5], [0.8, -0.8]])
    zeros = np.zeros_like(position)
    canvas = simple_spread.ENV.draw(simple_spread.State(position, zeros, zeros, position, 0.0), simple_spread.Params())
    (agents,) = (mark for mark in canvas.marks if isinstance(mark, Agents))
    assert agents.radius == pytest.approx(0.15 * canvas.scale)
    assert np.hypot(*agents.symbols[0].T) == pytest.approx(1.0)


# Linear RGB of people without green, and without red, cones (Machado, Oliveira and Fernandes, 2009, severity 1).
DEFICIENCIES = {
    "none": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def lab(colour, deficiency):
    """CIE L*a*b* of an sRGB colour, as it looks to people with a deficiency."""
    c = np.array(colour) / 255.0
    linear = np.clip(DEFICIENCIES[deficiency] @ np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4), 0.0, 1.0)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = to_xyz @ linear / (0.9505, 1.0, 1.089)
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_lab_is_that_of_known_colours():
    assert lab((255, 255, 255), "none") == pytest.approx([100.0, 0.0, 0.0], abs=0.1)
    assert lab((255, 0, 0), "none") == pytest.approx([53.2, 80.1, 67.2], abs=0.3)
    # Without green cones, this red and this green look alike, so that the distances below mean something.
    assert np.linalg.norm(lab((180, 100, 60), "none") - lab((105, 125, 60), "none")) > 40
    assert np.linalg.norm(lab((180, 100, 60), "deuteranopia") - lab((105, 125, 60), "deuteranopia")) < 15


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_animals_are_legible_for_people_of_any_colour_vision(deficiency):
    """A dark page shows the same colours, because black and white marks are not inverted; tests of the player show that."""
    wolf, sheep, ripe, bare = (lab(c, deficiency) for c in (pictures.WOLF, pictures.SHEEP, pictures.MEADOW, pictures.SOIL))
    for animal in (wolf, sheep):
        for ground in (ripe, bare):
            assert np.linalg.norm(animal - ground) > 30
            assert abs(animal[0] - ground[0]) > 30  # luminance
    assert abs(wolf[0] - sheep[0]) > 80
    assert np.linalg.norm(ripe - bare) > 20


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_roles_are_distinguished_by_people_of_any_colour_vision(deficiency):
    first, second = (lab(colour, deficiency) for colour in ROLE_COLOURS[:2])
    assert np.linalg.norm(first - second) > 50


def test_wolves_and_sheep_differ_in_shape_and_point_where_they_go():
    grass = np.zeros((8, 8), np.uint8)
    values = dict.fromkeys(predators.State._fields) | {
        "role": np.array([0, 1]), "is_alive": np.array([True, False]), "y": np.array([2, 3]), "x": np.array([4, 5]),
        "heading": np.array([1, 2]), "grass": grass,
    }  # fmt: skip
    (agents,) = (m for m in predators.ENV.draw(predators.State(**values), predators.Params()).marks if isinstance(m, Agents))
    assert agents.symbols[0].shape != agents.symbols[1].shape
    assert agents.heading == pytest.approx([0.0, -np.pi / 2])  # to the right, and down
    np.testing.assert_allclose(agents.points, [[270.0, 150.0], [np.nan, 210.0]])
    assert agents.active.tolist() == [True, False]  # so that a replay counts those that live


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RICE-N-v0", ["warming", "[°C]", "Output [trillion USD/yr]", "region", "100 %"]),
        ("EpidemicEconomy-v0", ["Stringency [level, 1 to 10]", "Infected [% of people]", "Unemployed [% of people]"]),
        ("SimpleSpeakerListener-v0", ["The speaker says nothing yet.", "landmark 0", "landmark 2"]),
    ],
)
def test_pictures_name_what_they_show(name, expected):
    """They have titles, units and numbers of axes, within the picture."""
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=1, device="cpu", output="numpy")
    env.reset(seed=0)
    declared = env.environment
    state = declared.state(**{field: env.get_state()[field][0] for field in declared.state._fields})
    canvas = declared.draw(state, declared.params)
    texts = [mark for mark in canvas.marks if isinstance(mark, Text)]
    assert set(expected) <= {mark.text for mark in texts}
    for mark in texts:
        x, y = mark.points[0]
        assert 0 <= x <= canvas.width
        assert mark.size / 2 <= y <= canvas.height - mark.size / 2
        assert mark.size / canvas.width * 350 > 8.5  # CSS pixels in a page of 400
    env.close()


def draw_with(name, **changes):
    """Returns the picture of the first state of an environment, of which some fields are others."""
    env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=1, device="cpu", output="numpy")
    env.reset(seed=0)
    fields = {field: values[0] for field, values in env.get_state().items()} | changes
    canvas = env.environment.draw(env.environment.state(**fields), env.environment.params)
    env.close()
    return canvas


def left_and_right(mark):
    """Returns where a text begins and ends in a wide font of browsers, such as DejaVu Sans [pixels]."""
    widths = {**dict.fromkeys("fijlrt:.,[]()/ -", 0.37), **dict.fromkeys("mwMW%+", 0.92)}  # of the size of the font
    width, x = mark.size * sum(widths.get(character, 0.64) for character in mark.text), mark.points[0][0]
    left = x - {"left": 0.0, "center": 0.5, "right": 1.0}[mark.align] * width
    return left, left + width


@pytest.mark.parametrize("corner", [(-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0)])
def test_landmarks_have_names_within_the_picture(corner):
    """At the corners of the square in which episodes begin, and beside the circles."""
    canvas = draw_with("SimpleSpeakerListener-v0", landmark=np.array([corner, (0.0, 0.0), (0.5, 0.5)]))
    circles = [mark for mark in canvas.marks if isinstance(mark, Circle)]
    names = [mark for mark in canvas.marks if isinstance(mark, Text) and mark.text.startswith("landmark")]
    assert [mark.text for mark in names] == ["landmark 0", "landmark 1", "landmark 2"]
    for mark in names:
        left, right = left_and_right(mark)
        y = mark.points[0][1]
        assert left >= 0
        assert right <= canvas.width
        assert mark.size / 2 <= y <= canvas.height - mark.size / 2
        for circle in circles:
            x, height = circle.points[0]
            is_beside = not left - circle.radius < x < right + circle.radius
            assert is_beside or abs(height - y) >= circle.radius + 0.4 * mark.size


def test_landmarks_have_the_numbers_of_events():
    """A number is within its circle, and has none where the circle is too small for it."""
    landmark = np.array([(-1.0, -1.0), (0.0, 0.0), (0.5, 0.5)])
    canvas = draw_with("SimpleSpread-v0", landmark=landmark)
    circles, numbers = ([mark for mark in canvas.marks if isinstance(mark, kind)] for kind in (Circle, Text))
    for k, (circle, number) in enumerate(zip(circles, numbers, strict=True)):
        assert number.text == f"{k}"
        assert number.colour != circle.colour
        np.testing.assert_array_equal(number.points, circle.points)
        left, right = left_and_right(number)
        assert np.hypot(right - left, 0.73 * number.size) <= 2 * circle.radius  # the diagonal of a digit
    far = draw_with("SimpleSpread-v0", landmark=landmark, position=np.array([(9.0, 0.0), (0.0, 0.0), (0.0, 0.0)]))
    assert not any(isinstance(mark, Text) for mark in far.marks)


def test_texts_of_charts_have_room_to_the_sides():
    # The last step of a world that grew, with the longest title.
    grown = {"activity_count": 20, "air_temperature": 10.1, "world_output": 1234.0}
    for canvas in (draw_with("RICE-N-v0", **grown), draw_with("EpidemicEconomy-v0")):
        for mark in canvas.marks:
            if isinstance(mark, Text):
                left, right = left_and_right(mark)
                assert 2 <= left < right <= canvas.width - 2, mark.text
