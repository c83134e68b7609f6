"""What pictures consist of: marks, in pixels.

Letters: A agents, H rows and W columns of cells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Points = NDArray[np.float64]
"""(N, 2): positions in pixels, x to the right and y downwards from the upper left corner."""
Outline = NDArray[np.float64]
"""(N, 2): corners of a polygon around (0, 0) that is about 1 wide to each side; the heading is along x, y is upwards."""

BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)
GREY: Colour = (153, 153, 153)
# Of the roles of agents, in the order of their numbers (Okabe and Ito, 2008, "Color universal design").
ROLE_COLOURS: tuple[Colour, ...] = (
    (213, 94, 0), (0, 114, 178), (0, 158, 115), (230, 159, 0), (204, 121, 167), (86, 180, 233),
)  # fmt: skip


class Polygon(NamedTuple):
    """A filled polygon."""

    points: Points
    colour: Colour


class Polyline(NamedTuple):
    """Straight lines from each point to the next."""

    points: Points
    colour: Colour
    width: float  # [pixels]


class Circle(NamedTuple):
    """A filled circle."""

    points: Points  # (1, 2), the centre
    radius: float  # [pixels]
    colour: Colour


class Text(NamedTuple):
    """A line of text."""

    points: Points  # (1, 2), half way up the text, and at the end or the middle that `align` names
    text: str
    size: float  # of the font [pixels]
    colour: Colour
    align: str  # "left", "center" or "right"


class Grid(NamedTuple):
    """A grid of coloured cells."""

    values: NDArray[np.uint8]  # (H, W), indices into `palette`; row 0 is the top one
    palette: tuple[Colour, ...]
    box: tuple[float, float, float, float]  # left, top, right, bottom [pixels]


class Agents(NamedTuple):
    """Agents with a symbol for each role."""

    points: Points  # (A, 2)
    radius: float  # of the symbols [pixels]
    role: NDArray[np.int32]  # (A,)
    names: tuple[str, ...]  # of the roles
    symbols: tuple[Outline, ...]  # of the roles
    colours: tuple[Colour, ...]  # of the roles
    heading: NDArray[np.float64] | None  # (A,) [rad], counter-clockwise from the direction of x
    active: NDArray[np.bool_] | None  # (A,)


Mark = Polygon | Polyline | Circle | Text | Grid | Agents
