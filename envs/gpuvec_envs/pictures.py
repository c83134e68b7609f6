"""Pictures of the bundled environments, with the sizes, proportions and colours of Gymnasium's pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuvec import Canvas

Point = tuple[float, float]

BLACK = (0, 0, 0)
GREY = (128, 128, 128)
WOOD = (202, 152, 101)
AXLE = (129, 132, 203)
FLAG = (204, 204, 0)
ROD = (204, 77, 77)
LINK = (0, 204, 204)
PALE = (220, 220, 220)
TAGGER = (204, 77, 77)
RUNNER = (52, 101, 164)
MEADOW = (106, 153, 78)
SOIL = (120, 94, 64)


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
    """Returns a picture, (200, 200, 3), of the bricks, the paddle, the ball and its trail."""
    cells = np.array(s.bricks, np.uint8)
    cells[s.last_y, s.last_x] = 2
    cells[s.ball_y, s.ball_x] = 3
    cells[-1, s.paddle_x] = 4
    height, width = cells.shape
    canvas = Canvas(20 * width, 20 * height)
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


def pendulum(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3), of the rod and its pivot. It has no arrow, because the torque is not in the state."""
    canvas = Canvas(500, 500, 500.0 / (4.4 * p.length), origin=(250.0, 250.0))
    upright = s.theta + 0.5 * math.pi
    half_width = 0.1 * p.length
    end = rotate([(p.length, 0.0)], upright, (0.0, 0.0))[0]
    canvas.polygon(rotate(rectangle(0.0, p.length, -half_width, half_width), upright, (0.0, 0.0)), ROD)
    canvas.circle((0.0, 0.0), half_width, ROD)
    canvas.circle(end, half_width, ROD)
    canvas.circle((0.0, 0.0), 0.5 * half_width, BLACK)
    return canvas


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
    """Returns a picture of the map: ripe grass is green, and on it are the animals that live."""
    height, width = s.grass.shape
    size = max(1, 480 // max(height, width))
    canvas = Canvas(size * width, size * height, size)
    canvas.cells(s.grass != 0, (MEADOW, SOIL))
    x, y = np.where(s.is_alive, s.x + 0.5, np.nan), height - (s.y + 0.5)
    canvas.agents(x, y, 0.5, role=s.role, names=("wolf", "sheep"))
    return canvas


def simple_spread(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3), of the agents and, on them, the landmarks.

    It shows the square in which episodes begin, and more of the plane where an agent has left it.
    """
    extent = max(1.0, float(np.abs(s.position).max())) + p.radius
    canvas = Canvas(500, 500, 250.0 / extent, origin=(250.0, 250.0))
    canvas.agents(s.position[:, 0], s.position[:, 1], p.radius)
    for x, y in s.landmark:
        canvas.circle((x, y), p.radius / 3.0, BLACK)
    return canvas


def simple_speaker_listener(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3), of the landmarks, the goal in the colour of the listener, and the listener.

    A ring is around the landmark whose word the speaker said. The picture shows the square in which episodes begin, and more of
    the plane where the listener has left it.
    """
    radius = 0.075
    extent = max(1.0, float(np.abs(s.position).max())) + 2.0 * radius
    canvas = Canvas(500, 500, 250.0 / extent, origin=(250.0, 250.0))
    if s.word[0] >= 0:
        canvas.circle(tuple(s.landmark[s.word[0]]), 1.6 * radius, PALE)
    for k, (x, y) in enumerate(s.landmark):
        canvas.circle((x, y), 0.8 * radius, RUNNER if k == s.goal else BLACK)
    for x, y in s.position:
        canvas.circle((x, y), radius, RUNNER)
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


def rice_n(s: Any, p: Any) -> Canvas:
    """Returns a picture, (300, 560, 3): a bar for the output of each region, red by its emissions, and the air temperature.

    A full bar is an output of 50e12 USD a year, a full thermometer on the left a warming of 8 degC.
    """
    canvas = Canvas(560, 300, 20.0, origin=(0.0, 10.0))
    warming = min(max(float(s.air_temperature) / 8.0, 0.0), 1.0)
    canvas.polygon(rectangle(0.2, 0.8, 0.0, 14.0), (230, 230, 230))
    canvas.polygon(rectangle(0.2, 0.8, 0.0, 14.0 * warming), (200, 60, 50))
    for i, output in enumerate(s.output):
        height = min(max(float(output) / 50.0, 0.0), 1.0)
        mitigation = float(s.mitigation[i]) / p.num_action_levels
        colour = (int(200 - 140 * mitigation), int(80 + 90 * mitigation), 80)
        canvas.polygon(rectangle(1.1 + i, 1.9 + i, 0.0, max(14.0 * height, 0.05)), colour)
    return canvas


def epidemic_economy(s: Any, p: Any) -> Canvas:
    """Returns a picture, (500, 500, 3): for each state the level of stringency, the infected and the unemployed.

    A column is a state. Its upper bar is the level, up to 10, the middle one the infected, up to 5 % of the people, and the
    lower one the unemployed, up to 30 %.
    """
    n, lag = len(s.infected), s.levels.shape[1]
    canvas = Canvas(500, 500, 1.0)
    width, height = 500.0 / n, 150.0
    levels = s.levels[np.arange(n), s.day % lag] / 10.0
    rows = ((levels, 340.0, BLACK), (s.infected / 0.05, 175.0, TAGGER), (s.unemployed / 0.3, 10.0, RUNNER))
    for values, bottom, colour in rows:
        for i, value in enumerate(np.clip(values, 0.0, 1.0)):
            canvas.polygon(rectangle((i + 0.1) * width, (i + 0.9) * width, bottom, bottom + height), PALE)
            canvas.polygon(rectangle((i + 0.1) * width, (i + 0.9) * width, bottom, bottom + max(1.0, height * value)), colour)
    return canvas
