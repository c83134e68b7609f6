"""A picture as a list of marks, for the `draw` functions of environments.

`array()` rasterises the marks for `render()` and videos. A replay stores the marks themselves.

Letters: A agents, H rows and W columns of cells.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.marks import BLACK, ROLE_COLOURS, Agents, Circle, Colour, Grid, Mark, Points, Polygon, Polyline, Text
from gpuvec.drawing.rasterizer import rasterize
from gpuvec.drawing.symbols import symbols_of_roles

Point = tuple[float, float]

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
        """Returns the picture, (height, width, 3) uint8.

        Raises:
            MissingExtraError: Pillow is not installed.
        """
        return rasterize(self.width, self.height, self.marks)


def _checked(colour: Colour) -> Colour:
    """Returns the colour as three ints; a picture file has no others."""
    red, green, blue = (min(max(int(c), 0), 255) for c in colour)
    return red, green, blue
