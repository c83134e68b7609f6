"""Pictures of the bundled environments, with the sizes, proportions and colours of Gymnasium's pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuvec import Canvas

Point = tuple[float, float]
Colour = tuple[int, int, int]

BLACK = (0, 0, 0)
WHITE = (255, 255, 255)
GREY = (128, 128, 128)
WOOD = (202, 152, 101)
AXLE = (129, 132, 203)
FLAG = (204, 204, 0)
ROD = (204, 77, 77)
LINK = (0, 204, 204)
PALE = (220, 220, 220)
TAGGER = (204, 77, 77)
RUNNER = (52, 101, 164)
# Of Predators. Animals are black and white, because no colour is legible on green and brown for people of any colour vision.
MEADOW = (128, 172, 92)
SOIL = (116, 92, 62)
WOLF = (20, 20, 24)
SHEEP = (255, 255, 255)
# Of bars, rings and arrows, legible on white and on dark paper
ORANGE = (230, 159, 0)
NAVY = (0, 60, 120)
GREEN = (0, 158, 115)
BLUE = (0, 114, 178)
VERMILION = (213, 94, 0)
TEXT = 16  # pixels


def rotate(points: list[Point], angle: float, offset: Point) -> list[Point]:
    """Returns `points` rotated counter-clockwise by `angle` [rad] about (0, 0), and then moved by `offset`."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(offset[0] + cos * x - sin * y, offset[1] + sin * x + cos * y) for x, y in points]


def rectangle(left: float, right: float, bottom: float, top: float) -> list[Point]:
    """Returns the corners of an upright rectangle."""
    return [(left, bottom), (left, top), (right, top), (right, bottom)]


def cartpole(s: Any, p: Any) -> Canvas:
    """Returns a picture, (400, 600, 3), of the cart and its rail from limit to limit."""
    half_rail = 2.4 if math.isinf(p.x_limit) else p.x_limit
    scale = 300.0 / half_rail
    px = 1.0 / scale  # The size of the cart is in pixels, the length of the pole in metres.
    canvas = Canvas(600, 400, scale, origin=(300.0, 100.0))
    axle = (s.x, 7.5 * px)
    canvas.polygon(rotate(rectangle(-25.0 * px, 25.0 * px, -15.0 * px, 15.0 * px), 0.0, (s.x, 0.0)), BLACK)
    canvas.polygon(rotate(rectangle(-5.0 * px, 5.0 * px, -5.0 * px, 2.0 * p.half_length - 5.0 * px), -s.theta, axle), WOOD)
    canvas.circle(axle, 5.0 * px, AXLE)
    canvas.line([(-half_rail, 0.0), (half_rail, 0.0)], BLACK)
    return canvas


def breakout(s: Any, p: Any) -> Canvas:
    """Returns a picture, (400, 400, 3), of the bricks, the paddle, the ball and its trail."""
    cells = np.array(s.bricks, np.uint8)
    cells[s.last_y, s.last_x] = 2
    cells[s.ball_y, s.ball_x] = 3
    cells[-1, s.paddle_x] = 4
    height, width = cells.shape
    canvas = Canvas(40 * width, 40 * height)
    canvas.cells(cells, (BLACK, ROD, GREY, PALE, LINK))
    return canvas


def connect_four(s: Any, p: Any) -> Canvas:
    """Returns a picture, (240, 280, 3), of the board and its pieces, with a line through those that win."""
    rows, columns = s.board.shape
    canvas = Canvas(40 * columns, 40 * rows, 40.0)
    canvas.polygon(rectangle(0.0, columns, 0.0, rows), RUNNER)
    for y in range(rows):
        for x in range(columns):
            canvas.circle((x + 0.5, rows - 0.5 - y), 0.4, (PALE, TAGGER, FLAG)[int(s.board[y, x])])
    for line in winning_lines(s.board):
        canvas.line([(x + 0.5, rows - 0.5 - y) for y, x in line], BLACK, width=5.0)
    return canvas


def winning_lines(board: Any) -> list[list[tuple[int, int]]]:
    """Returns the cells (row, column) of all lines of four pieces of one player on a board of ConnectFour."""
    lines = []
    for y, x in np.argwhere(board != 0).tolist():
        for dy, dx in ((0, 1), (1, 0), (1, 1), (1, -1)):
            cells = [(y + k * dy, x + k * dx) for k in range(4)]
            is_inside = all(0 <= row < board.shape[0] and 0 <= column < board.shape[1] for row, column in cells)
            if is_inside and len({int(board[cell]) for cell in cells}) == 1:
                lines.append(cells)
    return lines


def mountain_car(s: Any, p: Any) -> Canvas:
    """Returns a picture, (400, 600, 3), of the valley from wall to wall, the car and the flag at the goal."""
    scale = 600.0 / (p.max_position - p.min_position)
    px = 1.0 / scale
    canvas = Canvas(600, 400, scale, origin=(-scale * p.min_position, 0.0))

    def height(x: float) -> float:
        return 0.45 * math.sin(3.0 * x) + 0.55

    slope = math.cos(3.0 * s.x)
    ground = (s.x, height(s.x) + 10.0 * px)
    canvas.line([(float(x), height(x)) for x in np.linspace(p.min_position, p.max_position, 100)], BLACK)
    canvas.polygon(rotate(rectangle(-20.0 * px, 20.0 * px, 0.0, 20.0 * px), slope, ground), BLACK)
    for wheel in rotate([(10.0 * px, 0.0), (-10.0 * px, 0.0)], slope, ground):
        canvas.circle(wheel, 8.0 * px, GREY)

    x, foot = p.goal_position, height(p.goal_position)
    top = foot + 50.0 * px
    canvas.line([(x, foot), (x, top)], BLACK)
    canvas.polygon([(x, top), (x, top - 10.0 * px), (x + 25.0 * px, top - 5.0 * px)], FLAG)
    return canvas


def pendulum(s: Any, p: Any, action: Any = None) -> Canvas:
    """Returns a picture, (500, 500, 3), of the rod, its pivot and, after the first step, the torque.

    The arrow turns as the torque does, by 150 degrees for the largest torque.
    """
    canvas = Canvas(500, 500, 500.0 / (4.4 * p.length), origin=(250.0, 250.0))
    upright = s.theta + 0.5 * math.pi
    half_width = 0.1 * p.length
    end = rotate([(p.length, 0.0)], upright, (0.0, 0.0))[0]
    canvas.polygon(rotate(rectangle(0.0, p.length, -half_width, half_width), upright, (0.0, 0.0)), ROD)
    canvas.circle((0.0, 0.0), half_width, ROD)
    canvas.circle(end, half_width, ROD)
    canvas.circle((0.0, 0.0), 0.5 * half_width, BLACK)
    if action is not None:
        torque = min(max(float(np.asarray(action).ravel()[0]), -p.max_torque), p.max_torque)
        draw_turn(canvas, 0.45 * p.length, math.radians(150.0) * torque / p.max_torque)
        canvas.text((0.0, -2.0 * p.length), f"torque {torque:+.2f} N m", TEXT, align="center")
    return canvas


def draw_turn(canvas: Canvas, radius: float, angle: float) -> None:
    """Draws an arrow around (0, 0), which begins at the top and turns counter-clockwise by an angle [rad]."""
    first, size = 0.5 * math.pi, 0.3 * radius * min(1.0, 2.0 * abs(angle))
    arc = [(radius * math.cos(first + angle * k / 24), radius * math.sin(first + angle * k / 24)) for k in range(25)]
    canvas.line(arc, BLUE, width=4)
    # The tip is ahead of the end of the arc.
    head = [(0.0, -0.5 * size), (0.0, 0.5 * size), (math.copysign(size, angle), 0.0)]
    canvas.polygon(rotate(head, first + angle + 0.5 * math.pi, arc[-1]), BLUE)


def acrobot(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3), of the two links and the line that the tip must cross."""
    extent = p.length1 + p.length2 + 0.2
    canvas = Canvas(500, 500, 250.0 / extent, origin=(250.0, 250.0))
    first, second = s.theta1 - 0.5 * math.pi, s.theta1 + s.theta2 - 0.5 * math.pi
    elbow = rotate([(p.length1, 0.0)], first, (0.0, 0.0))[0]
    canvas.line([(-extent, p.goal_height), (extent, p.goal_height)], BLACK)
    for joint, angle, length in (((0.0, 0.0), first, p.length1), (elbow, second, p.length2)):
        canvas.polygon(rotate(rectangle(0.0, length, -0.1, 0.1), angle, joint), LINK)
        canvas.circle(joint, 0.1, FLAG)
    return canvas


def predators(s: Any, p: Any) -> Canvas:
    """Returns a picture of the map: ripe grass is green, and on it are the animals that live.

    Wolves are black darts and sheep white drops, which point where they go.
    """
    height, width = s.grass.shape
    size = max(1, 480 // max(height, width))
    canvas = Canvas(size * width, size * height, size)
    canvas.cells(s.grass != 0, (MEADOW, SOIL))
    x, y = np.where(s.is_alive, s.x + 0.5, np.nan), height - (s.y + 0.5)
    heading = 0.5 * math.pi * (1 - s.heading)
    names, symbols, colours = ("wolf", "sheep"), ("dart", "drop"), (WOLF, SHEEP)
    # Dead animals have no position. That they are inactive lets a replay count those that live.
    canvas.agents(x, y, 0.42, role=s.role, names=names, heading=heading, active=s.is_alive, symbols=symbols, colours=colours)
    return canvas


def simple_spread(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3), of the agents and, on them, the landmarks, with the radii that they have in MPE2.

    Landmarks have their numbers, which events name. The picture shows the square in which episodes begin, and more of the plane
    where an agent has left it.
    """
    extent = max(1.0, float(np.abs(s.position).max())) + p.radius
    canvas = Canvas(500, 500, 250.0 / extent, origin=(250.0, 250.0))
    canvas.agents(s.position[:, 0], s.position[:, 1], p.radius, symbols=("circle",))
    for k, (x, y) in enumerate(s.landmark):
        canvas.circle((x, y), p.radius / 3.0, BLACK)
        if canvas.scale * p.radius / 3.0 > 0.5 * TEXT:
            canvas.text((x, y), f"{k}", TEXT, WHITE, align="center")
    return canvas


def simple_speaker_listener(s: Any, p: Any) -> Canvas:
    """Returns a picture, (580, 500, 3): above what the speaker says, and below the listener and the landmarks.

    A ring is around the goal. Circles have the radii that they have in MPE2. The picture shows the square in which episodes
    begin, and more of the plane where the listener has left it. The speaker has no position, and is drawn above the plane.
    """
    radius, landmark_radius = 0.075, 0.04
    extent = max(1.0, float(np.abs(s.position).max())) + 2.0 * radius
    scale = 250.0 / extent
    canvas = Canvas(500, 580, scale, origin=(250.0, 250.0))
    top = 290.0 / scale  # the height of the speaker

    def place(pixels: float) -> float:
        return (pixels - 250.0) / scale

    canvas.line([(-extent, extent), (extent, extent)], GREY)
    for k, (x, y) in enumerate(s.landmark):
        if k == s.goal:
            canvas.circle((x, y), 2.5 * landmark_radius, ORANGE)
        canvas.circle((x, y), landmark_radius, GREY if k != s.goal else NAVY)
        # Names are below landmarks, or above those at the lower edge, and within the sides.
        rise = -4.2 * landmark_radius if y > -extent + 6.0 * landmark_radius else 4.2 * landmark_radius
        margin = extent - 50.0 / scale
        canvas.text((min(max(x, -margin), margin), y + rise), f"landmark {k}", TEXT, align="center")
    x, y = np.array([place(40.0), s.position[0, 0]]), np.array([top, s.position[0, 1]])
    canvas.agents(x, y, radius, role=np.arange(2), names=("speaker", "listener"), symbols=("circle", "circle"))
    said = "says nothing yet" if s.word[0] < 0 else f"says word {s.word[0]}"
    canvas.text((place(70.0), top), f"The speaker {said}.", TEXT)
    canvas.text((place(490.0), top), f"The goal is landmark {s.goal}.", TEXT, align="right")
    return canvas


def tag_grid_world(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3), of the grid with its taggers and runners."""
    cells = p.grid_length + 1
    canvas = Canvas(500, 500, 500.0 / cells)
    # With more cells, lines would cover most of the picture.
    if cells <= 100:
        for k in range(1, cells):
            canvas.line([(k, 0.0), (k, cells)], PALE)
            canvas.line([(0.0, k), (cells, k)], PALE)
    canvas.agents(s.x + 0.5, s.y + 0.5, 0.4, role=s.role, names=("tagger", "runner"))
    return canvas


def tag_continuous(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3), of taggers and runners, with discs of the tagging distance around taggers."""
    canvas = Canvas(500, 500, 480.0 / p.grid_length, origin=(10.0, 10.0))
    tagger, reach = s.role == 0, p.tagging_distance * p.grid_length
    for x, y in zip(s.x[tagger], s.y[tagger], strict=True):
        canvas.circle((x, y), reach, PALE)
    canvas.line([*rectangle(0.0, p.grid_length, 0.0, p.grid_length), (0.0, 0.0)], GREY)
    radius = p.grid_length / 60.0
    canvas.agents(s.x, s.y, radius, role=s.role, names=("tagger", "runner"), heading=s.heading, active=s.alive)
    return canvas


class BarPanel(NamedTuple):
    """The axes of bars, in pixels from the lower left corner of a picture."""

    left: float
    right: float
    bottom: float
    top: float
    largest: float  # the value at the top
    is_bound: bool  # whether no value is larger; otherwise larger ones are drawn at the top, whose number says so

    def height_of(self, value: float) -> float:
        """Returns where a value is."""
        return self.bottom + (self.top - self.bottom) * min(max(value / self.largest, 0.0), 1.0)

    def draw_axes(self, canvas: Canvas, caption: str, ticks: Sequence[float]) -> None:
        """Draws the caption above the panel, and lines with numbers at some values.

        Args:
            canvas: on which it draws.
            caption: with the unit.
            ticks: the values, of which the last is the largest.
        """
        canvas.text((self.left, self.top + 20.0), caption, TEXT)
        for value in ticks:
            y, number = self.height_of(value), f"{value:g}{'+' if value == self.largest and not self.is_bound else ''}"
            canvas.line([(self.left, y), (self.right, y)], PALE if value else GREY)
            canvas.text((self.left - 6.0, y), number, 14, align="right")

    def draw_bars(self, canvas: Canvas, values: Iterable[float], colours: Sequence[Colour]) -> None:
        """Draws a bar for each value, at least 1 pixel high.

        Args:
            canvas: on which it draws.
            values: of the bars.
            colours: of the bars.
        """
        width = (self.right - self.left) / len(colours)
        for i, (value, colour) in enumerate(zip(values, colours, strict=True)):
            left, top = self.left + width * i, max(self.height_of(float(value)), self.bottom + 1.0)
            canvas.polygon(rectangle(left + 0.1 * width, left + 0.9 * width, self.bottom, top), colour)


def colour_of_fraction(fraction: float) -> Colour:
    """Returns the colour of a fraction from 0, orange, to 1, dark violet, between which luminance falls evenly."""
    stops = np.array([ORANGE, (204, 71, 120), (70, 20, 150)])
    red, green, blue = (round(float(np.interp(fraction, (0.0, 0.5, 1.0), channel))) for channel in stops.T)
    return red, green, blue


def rice_n(s: Any, p: Any) -> Canvas:
    """Returns a picture, (420, 560, 3): the warming, and the output of each region in the colour of its mitigation."""
    canvas = Canvas(560, 420)
    warming = float(s.air_temperature)
    output = f"world output {float(s.world_output):.0f} trillion USD/yr"
    title = f"Year {2015 + 5 * s.activity_count}: warming {warming:.1f} °C, {output}"
    canvas.text((280.0, 402.0), title, TEXT, align="center")
    air = BarPanel(36.0, 80.0, 50.0, 334.0, 8.0, is_bound=False)
    air.draw_axes(canvas, "[°C]", (0, 2, 4, 6, 8))
    air.draw_bars(canvas, [warming], [VERMILION])
    canvas.text((58.0, 30.0), "warming", TEXT, align="center")
    regions = BarPanel(126.0, 548.0, 50.0, 334.0, 75.0, is_bound=False)
    regions.draw_axes(canvas, "Output [trillion USD/yr]", (0, 25, 50, 75))
    regions.draw_bars(canvas, s.output, [colour_of_fraction(float(level) / p.num_action_levels) for level in s.mitigation])
    width = (regions.right - regions.left) / len(s.output)
    for i in range(0, len(s.output), 5):
        canvas.text((regions.left + width * (i + 0.5), 38.0), f"{i}", 14, align="center")
    canvas.text((337.0, 16.0), "region", TEXT, align="center")
    canvas.text((428.0, 354.0), "mitigation 0", TEXT, align="right")
    for k in range(6):
        canvas.polygon(rectangle(434.0 + 9.0 * k, 443.0 + 9.0 * k, 348.0, 360.0), colour_of_fraction(k / 5.0))
    canvas.text((494.0, 354.0), "100 %", TEXT)
    return canvas


def epidemic_economy(s: Any, p: Any) -> Canvas:
    """Returns a picture, (600, 520, 3): for each state the level of stringency, the infected and the unemployed."""
    n, lag = len(s.infected), s.levels.shape[1]
    canvas = Canvas(520, 600)
    subsidies = f"subsidies {int(s.subsidy_level[0])} of {p.num_subsidy_levels}"
    canvas.text((260.0, 582.0), f"Day {s.day}: {100.0 * s.total_deaths:.2f} % died, {subsidies}", 18, align="center")
    levels = s.levels[np.arange(n), s.day % lag]
    rows = (
        ("Stringency [level, 1 to 10]", levels, (0, 5, 10), NAVY),
        ("Infected [% of people]", 100.0 * s.infected, (0, 5, 10, 15), VERMILION),
        ("Unemployed [% of people]", 100.0 * s.unemployed, (0, 10, 20, 30), GREEN),
    )
    for k, (caption, values, ticks, colour) in enumerate(rows):
        panel = BarPanel(46.0, 510.0, 402.0 - 176.0 * k, 524.0 - 176.0 * k, ticks[-1], is_bound=k == 0)
        panel.draw_axes(canvas, caption, ticks)
        panel.draw_bars(canvas, values, [colour] * n)
        mean = panel.height_of(float(np.mean(values)))
        canvas.line([(panel.left, mean), (panel.right, mean)], BLACK, width=2)
        canvas.text((510.0, panel.top + 20.0), f"mean {float(np.mean(values)):.1f}", TEXT, align="right")
    canvas.text((260.0, 20.0), f"{n} states, a bar for each; the line is their mean", TEXT, align="center")
    return canvas
