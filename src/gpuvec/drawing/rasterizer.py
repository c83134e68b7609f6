"""Pictures of marks by Pillow, with smooth edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.drawing.marks import GREY, WHITE, Agents, Circle, Grid, Mark, Points, Polygon, Polyline, Text
from gpuvec.errors import MissingExtraError, install_command

OVERSAMPLING = 4  # of each axis; pixels of the picture are means
ANGLES = np.linspace(0.0, 2.0 * np.pi, 64, endpoint=False)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)


def rasterize(width: int, height: int, marks: Sequence[Mark]) -> NDArray[np.uint8]:
    """Returns a picture, (height, width, 3) uint8, of marks that are drawn one after the other on white.

    Args:
        width: of the picture [pixels].
        height: of the picture [pixels].
        marks: what is drawn.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingExtraError(f"pictures need Pillow, which is not installed: {install_command('render')}") from error
    image = Image.new("RGB", (width * OVERSAMPLING, height * OVERSAMPLING), WHITE)
    draw = ImageDraw.Draw(image)
    for mark in marks:
        if isinstance(mark, Grid):
            _paste_cells(image, mark)
        elif isinstance(mark, Agents):
            _draw_agents(draw, mark)
        elif isinstance(mark, Text):
            _draw_text(draw, mark)
        else:
            _draw_shape(draw, mark)
    return np.array(image.reduce(OVERSAMPLING), np.uint8)


def _coordinates(points: Points) -> list[tuple[float, float]]:
    """Returns positions in the larger picture, in which Pillow counts from the centre of a pixel."""
    return [(x, y) for x, y in (points * OVERSAMPLING - 0.5).tolist()]


def _draw_shape(draw: Any, mark: Polygon | Polyline | Circle) -> None:
    if isinstance(mark, Polyline):
        width = max(1, round(mark.width * OVERSAMPLING))
        draw.line(_coordinates(mark.points), fill=mark.colour, width=width, joint="curve")
    elif isinstance(mark, Polygon):
        draw.polygon(_coordinates(mark.points), fill=mark.colour)
    else:
        # A polygon, because Pillow moves an ellipse by half a pixel. Pillow rounds its corners, which are not whole numbers, to
        # the nearest pixels, so that they are not moved.
        corners = (mark.points + mark.radius * CIRCLE) * OVERSAMPLING
        draw.polygon([(x, y) for x, y in corners.tolist()], fill=mark.colour)


def _draw_text(draw: Any, mark: Text) -> None:
    anchor = {"left": "lm", "center": "mm", "right": "rm"}[mark.align]
    (position,) = _coordinates(mark.points)
    draw.text(position, mark.text, mark.colour, _load_font(mark.size * OVERSAMPLING), anchor)


@lru_cache
def _load_font(size: float) -> Any:
    """Returns the font that comes with Pillow."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _paste_cells(image: Any, mark: Grid) -> None:
    from PIL import Image

    left, top, right, bottom = (round(x * OVERSAMPLING) for x in mark.box)
    colours = np.array(mark.palette, np.uint8)[mark.values]
    image.paste(Image.fromarray(colours).resize((right - left, bottom - top), Image.Resampling.NEAREST), (left, top))


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
