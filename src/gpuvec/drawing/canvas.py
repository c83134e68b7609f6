"""A picture as a list of marks, for the `draw` functions of environments.

`Canvas.array()` rasterises the marks for `render()` and videos. A replay stores the marks themselves.

Letters: A agents, H rows and W columns of cells, N corners of a polygon.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.marks import (
    BLACK,
    GREY,
    ROLE_COLOURS,
    WHITE,
    Agents,
    Circle,
    Colour,
    Grid,
    Mark,
    Outline,
    Points,
    Polygon,
    Polyline,
    Text,
)
from gpuvec.errors import MissingExtraError, install_command


def _arc(begin: float, end: float, radius: float, corners: int) -> Outline:
    """Returns corners of an arc, angles in degrees."""
    angles = np.radians(np.linspace(begin, end, corners))
    return radius * np.stack([np.cos(angles), np.sin(angles)], 1)


DART = np.array([(1.4, 0.0), (-1.0, 0.95), (-0.5, 0.0), (-1.0, -0.95)])
DROP = np.concatenate([[(1.3, 0.0)], _arc(50.0, 310.0, 0.8, 14)])
BAR = np.array([(1.0, 0.3), (0.6, 0.7), (-0.8, 0.7), (-0.8, -0.7), (0.6, -0.7), (1.0, -0.3)])
KITE = np.array([(1.3, 0.0), (0.0, 0.7), (-0.7, 0.0), (0.0, -0.7)])
DISC = _arc(0.0, 345.0, 0.9, 24)
CIRCLE = _arc(0.0, 354.0, 1.0, 60)
SQUARE = 0.8 * np.array([(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)])
TRIANGLE = _arc(90.0, 330.0, 1.1, 3)
DIAMOND = _arc(0.0, 270.0, 1.1, 4)
SYMBOLS = {
    "dart": DART, "drop": DROP, "bar": BAR, "kite": KITE, "square": SQUARE, "disc": DISC, "triangle": TRIANGLE,
    "diamond": DIAMOND, "circle": CIRCLE,
}  # fmt: skip
"""{name: outline}. A circle has a radius of exactly 1, for bodies that are drawn to scale."""
WITH_HEADING = (DART, DROP, BAR, KITE)
WITHOUT_HEADING = (SQUARE, DISC, TRIANGLE, DIAMOND)


def symbols_of_roles(names: Sequence[str] | None, count: int, has_heading: bool) -> tuple[Outline, ...]:
    """Returns the symbols of roles.

    Args:
        names: of `SYMBOLS`, in the order of the roles; None for symbols that differ.
        count: the number of roles.
        has_heading: whether symbols that differ show a heading.

    Raises:
        ValueError: a name that is none, or another number of names.
    """
    if names is None:
        symbols = WITH_HEADING if has_heading else WITHOUT_HEADING
        return tuple(symbols[role % len(symbols)] for role in range(count))
    if len(names) != count or not all(name in SYMBOLS for name in names):
        raise ValueError(f"symbols are {tuple(names)}; there must be {count}, one for each role, of {', '.join(SYMBOLS)}.")
    return tuple(SYMBOLS[name] for name in names)


Point = tuple[float, float]

OVERSAMPLING = 4  # of each axis; pixels of the picture are means
ANGLES = np.linspace(0.0, 2.0 * np.pi, 64, endpoint=False)
UNIT_CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
MAX_TEXT = 200  # characters
ALIGNMENTS = ("left", "center", "right")


class Canvas:
    """A picture, white at first, on which functions draw in world coordinates: x to the right and y upwards.

    Args:
        width: the width of the picture [pixels].
        height: the height of the picture [pixels].
        scale: the number of pixels per unit of world coordinates.
        origin: the position of (0, 0) in world coordinates, in pixels from the lower left corner.
    """

    def __init__(self, width: int, height: int, scale: float = 1.0, origin: Point = (0.0, 0.0)) -> None:
        self.width, self.height, self.scale, self.origin = width, height, scale, origin
        self.marks: list[Mark] = []
        """What was drawn, in this order."""

    def positions(self, points: Iterable[Point] | NDArray[Any]) -> Points:
        """Converts world coordinates to pixels.

        Args:
            points: N pairs (x, y) in world coordinates.

        Returns:
            (N, 2): distances from the left and from the upper edge of the picture.
        """
        world = np.asarray(points if isinstance(points, np.ndarray) else list(points), np.float64).reshape(-1, 2)
        x, y = self.origin[0] + self.scale * world[:, 0], self.height - self.origin[1] - self.scale * world[:, 1]
        return np.stack([x, y], 1)

    def polygon(self, corners: Iterable[Point], colour: Colour) -> None:
        """Draws a filled polygon.

        Args:
            corners: the corners in their order, in world coordinates.
            colour: (red, green, blue), each from 0 to 255.
        """
        self.marks.append(Polygon(self.positions(corners), _checked(colour)))

    def line(self, points: Iterable[Point], colour: Colour = BLACK, width: float = 1) -> None:
        """Draws straight lines from each point to the next.

        Args:
            points: the points in their order, in world coordinates.
            colour: (red, green, blue), each from 0 to 255.
            width: the width of the lines [pixels].
        """
        self.marks.append(Polyline(self.positions(points), _checked(colour), float(width)))

    def circle(self, centre: Point, radius: float, colour: Colour) -> None:
        """Draws a filled circle.

        Args:
            centre: the centre, in world coordinates.
            radius: the radius, in units of world coordinates.
            colour: (red, green, blue), each from 0 to 255.
        """
        self.marks.append(Circle(self.positions([centre]), self.scale * float(radius), _checked(colour)))

    def text(self, position: Point, text: str, size: float = 14, colour: Colour = BLACK, align: str = "left") -> None:
        """Writes a line of text.

        Videos and `render()` have ASCII, the degree sign and the middle dot; a replay has all characters of the browser. The
        fonts of both differ in width, so leave a tenth of room. In a replay a font has at least 9 pixels of the screen.

        Args:
            position: half way up the text, and at the end or the middle that `align` names, in world coordinates.
            text: one line of at most 200 characters.
            size: of the font [pixels].
            colour: (red, green, blue), each from 0 to 255.
            align: which part of the text is at the position: "left", "center" or "right".

        Raises:
            ValueError: several lines, a longer text, a size that is not positive, or another alignment.
        """
        if not isinstance(text, str) or len(text) > MAX_TEXT or not text.isprintable():
            raise ValueError(
                f"a text is one line of at most {MAX_TEXT} characters, got {reprlib.repr(text)}: call text for each line."
            )
        if align not in ALIGNMENTS or not 0.0 < size < math.inf:
            raise ValueError(f"align is {align!r} and size {size}; they must be one of {', '.join(ALIGNMENTS)}, and above 0.")
        self.marks.append(Text(self.positions([position]), text, float(size), _checked(colour), align))

    def cells(self, values: NDArray[Any], palette: Sequence[Colour]) -> None:
        """Draws a grid of coloured cells, which fills the picture.

        Args:
            values: (H, W) indices into the palette; row 0 is the top one.
            palette: at most 256 colours (red, green, blue), each from 0 to 255.

        Raises:
            ValueError: an index without a colour.
        """
        indices = np.asarray(values)
        if indices.ndim != 2 or not 1 <= len(palette) <= 256 or indices.min() < 0 or indices.max() >= len(palette):
            raise ValueError(
                f"cells have shape {indices.shape} and values from {indices.min()} to {indices.max()}; they must be (H, W) "
                f"indices from 0 to {len(palette) - 1} into a palette of 1 to 256 colours."
            )
        box = (0.0, 0.0, float(self.width), float(self.height))
        self.marks.append(Grid(indices.astype(np.uint8), tuple(map(_checked, palette)), box))

    def agents(
        self,
        x: NDArray[Any],
        y: NDArray[Any],
        radius: float,
        *,
        role: NDArray[Any] | None = None,
        names: Sequence[str] = ("agent",),
        heading: NDArray[Any] | None = None,
        active: NDArray[Any] | None = None,
        symbols: Sequence[str] | None = None,
        colours: Sequence[Colour] | None = None,
    ) -> None:
        """Draws agents with the symbols of their roles. A replay shows their trails, and details of an agent.

        An agent whose position is not finite is not drawn.

        Args:
            x: (A,) positions in world coordinates.
            y: (A,).
            radius: of a symbol, in units of world coordinates; symbols have at least 2 pixels.
            role: (A,) the number of each agent's role; None for 0.
            names: of the roles.
            heading: (A,) [rad], counter-clockwise from the direction of x; None without headings.
            active: (A,) bool; inactive agents are grey. None if all agents are active.
            symbols: of the roles: "dart", "drop", "bar" and "kite", which show a heading, "square", "disc", "triangle" and
                "diamond", or "circle", which has exactly the radius. None for symbols that differ from role to role.
            colours: (red, green, blue) of the roles, each from 0 to 255; None for colours that people with any colour vision
                can distinguish.

        Raises:
            ValueError: arrays of different lengths, or a role without a name, a symbol or a colour.
        """
        count = len(x)
        roles = np.zeros(count, np.int32) if role is None else np.asarray(role, np.int32)
        arrays = {"y": y, "role": roles, "heading": heading, "active": active}
        if lengths := {name: len(array) for name, array in arrays.items() if array is not None and len(array) != count}:
            raise ValueError(f"x has {count} agents, but {lengths}: all arrays of agents must have the same length.")
        if count and not 0 <= roles.min() <= roles.max() < len(names):
            raise ValueError(
                f"roles are from {roles.min()} to {roles.max()}, and the names are {tuple(names)}: name each role."
            )
        if colours is None:
            colours = [ROLE_COLOURS[k % len(ROLE_COLOURS)] for k in range(len(names))]
        if len(colours) != len(names):
            raise ValueError(f"there are {len(colours)} colours and {len(names)} roles: give each role a colour.")
        self.marks.append(
            Agents(
                self.positions(np.stack([x, y], 1)),
                max(2.0, self.scale * float(radius)),
                roles,
                tuple(names),
                symbols_of_roles(symbols, len(names), heading is not None),
                tuple(map(_checked, colours)),
                None if heading is None else np.asarray(heading, np.float64),
                None if active is None else np.asarray(active, np.bool_),
            )
        )

    def array(self) -> NDArray[np.uint8]:
        """Returns the picture, (height, width, 3) uint8, of the marks one after the other on white, with smooth edges.

        Raises:
            MissingExtraError: Pillow is not installed.
        """
        try:
            from PIL import Image, ImageDraw
        except ImportError as error:
            raise MissingExtraError(f"pictures need Pillow, which is not installed: {install_command('render')}") from error
        image = Image.new("RGB", (self.width * OVERSAMPLING, self.height * OVERSAMPLING), WHITE)
        draw = ImageDraw.Draw(image)
        for mark in self.marks:
            if isinstance(mark, Grid):
                left, top, right, bottom = (round(x * OVERSAMPLING) for x in mark.box)
                cells = Image.fromarray(np.array(mark.palette, np.uint8)[mark.values])
                image.paste(cells.resize((right - left, bottom - top), Image.Resampling.NEAREST), (left, top))
            elif isinstance(mark, Agents):
                _draw_agents(draw, mark)
            elif isinstance(mark, Text):
                anchor = {"left": "lm", "center": "mm", "right": "rm"}[mark.align]
                (position,) = _coordinates(mark.points)
                draw.text(position, mark.text, mark.colour, _load_font(mark.size * OVERSAMPLING), anchor)
            elif isinstance(mark, Polyline):
                width = max(1, round(mark.width * OVERSAMPLING))
                draw.line(_coordinates(mark.points), fill=mark.colour, width=width, joint="curve")
            elif isinstance(mark, Polygon):
                draw.polygon(_coordinates(mark.points), fill=mark.colour)
            else:
                # A polygon, because Pillow moves an ellipse by half a pixel. Pillow rounds its corners, which are not whole
                # numbers, to the nearest pixels, so that they are not moved.
                corners = (mark.points + mark.radius * UNIT_CIRCLE) * OVERSAMPLING
                draw.polygon([(x, y) for x, y in corners.tolist()], fill=mark.colour)
        return np.array(image.reduce(OVERSAMPLING), np.uint8)


def _checked(colour: Colour) -> Colour:
    """Returns the colour as three ints; a picture file has no others."""
    red, green, blue = (min(max(int(c), 0), 255) for c in colour)
    return red, green, blue


RADIUS_SHARE = 1.0 / 60.0  # of the longer side of the picture


@dataclass(frozen=True, kw_only=True)
class AgentFields:
    """A function `draw` for an environment whose picture is its agents: it names the fields of the state that they have.

    ``draw=AgentFields(x="x", y="y", heading="heading", box=(0, 0, "side", "side"))`` in the declaration of an environment draws
    agents of one role on a square, with the parameter `side` as its width and height.
    """

    x: str
    """The name of the field with positions, (A,), or a scalar of one agent."""
    y: str
    """The name of the field with the other coordinates."""
    box: tuple[float | str, float | str, float | str, float | str]
    """Left, lower, right and upper end of the picture in units of the positions: numbers, or names of parameters."""
    heading: str | None = None
    """The name of the field with headings [rad], counter-clockwise from the direction of x; None without headings."""
    role: str | None = None
    """The name of the field with the numbers of roles; None if all agents have one role."""
    active: str | None = None
    """The name of the field that is True for active agents; None if all are active."""
    names: Sequence[str] = ("agent",)
    """The names of the roles in the order of their numbers."""
    radius: float | None = None
    """The radius of symbols in units of the positions; None for 1/60 of the longer side."""
    size: int = 480
    """The longer side of the picture [pixels]."""

    def __call__(self, s: Any, p: Any) -> Canvas:
        """Returns the picture of a state.

        Args:
            s: the state.
            p: the parameters.

        Raises:
            ValueError: a name that is no field or parameter, or a box without an area.
        """
        left, bottom, right, top = (float(_read(p, end, "parameter")) if isinstance(end, str) else end for end in self.box)
        width, height = right - left, top - bottom
        if not (width > 0.0 and height > 0.0):
            raise ValueError(f"the box of AgentFields must have an area, got {(left, bottom, right, top)}.")
        scale = self.size / max(width, height)
        canvas = Canvas(round(scale * width), round(scale * height), scale, (-left * scale, -bottom * scale))
        radius = RADIUS_SHARE * max(width, height) if self.radius is None else self.radius
        arrays: dict[str, Any] = {}
        for key in ("x", "y", "role", "heading", "active"):
            name = getattr(self, key)
            arrays[key] = None if name is None else np.atleast_1d(np.asarray(_read(s, name, "field of the state")))
        canvas.agents(radius=radius, names=self.names, **arrays)
        return canvas


def _read(values: Any, name: str, kind: str) -> Any:
    """Returns a member of a NamedTuple.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in values._fields:
        raise ValueError(f"AgentFields names {name!r}, which is no {kind}; there are {', '.join(values._fields)}.")
    return getattr(values, name)


def _coordinates(points: Points) -> list[tuple[float, float]]:
    """Returns positions in the larger picture, in which Pillow counts from the centre of a pixel."""
    return [(x, y) for x, y in (points * OVERSAMPLING - 0.5).tolist()]


@lru_cache
def _load_font(size: float) -> Any:
    """Returns the font that comes with Pillow."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _draw_agents(draw: Any, mark: Agents) -> None:
    """Draws inactive agents first, and then the roles from the last to the first."""
    active = np.ones(len(mark.role), np.bool_) if mark.active is None else mark.active
    heading = np.zeros(len(mark.role)) if mark.heading is None else mark.heading
    cos, sin = np.cos(heading), np.sin(heading)
    rotation = np.stack([np.stack([cos, -sin], 1), np.stack([-sin, -cos], 1)], 2)  # y is downwards in the picture
    is_drawn = np.isfinite(mark.points.sum(1))
    for k in (k for k in np.lexsort((-mark.role, active)).tolist() if is_drawn[k]):
        outline = mark.symbols[mark.role[k]] * mark.radius
        colour = mark.colours[mark.role[k]] if active[k] else GREY
        draw.polygon(_coordinates(mark.points[k] + outline @ rotation[k]), fill=colour)
