"""A picture on the host for the `draw` functions of environments, drawn with Pillow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.errors import MissingExtraError

Colour = tuple[int, int, int]
Point = tuple[float, float]

BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)


class Canvas:
    """A picture, white at first, on which functions draw in world coordinates: x to the right and y upwards.

    Args:
        width: the width of the picture [pixels].
        height: the height of the picture [pixels].
        scale: the number of pixels per unit of world coordinates.
        origin: the position of (0, 0) in world coordinates, in pixels from the lower left corner.

    Raises:
        MissingExtraError: Pillow is not installed.
    """

    def __init__(self, width: int, height: int, scale: float = 1.0, origin: Point = (0.0, 0.0)) -> None:
        try:
            # Imported here, because environments that draw nothing do not need Pillow.
            from PIL import Image, ImageDraw
        except ImportError as error:
            raise MissingExtraError(
                "Pictures need Pillow, which is not installed. Install the extra: pip install 'gpuvec[render]'."
            ) from error
        self.width, self.height, self.scale, self.origin = width, height, scale, origin
        self._image: Any = Image.new("RGB", (width, height), WHITE)
        self._draw: Any = ImageDraw.Draw(self._image)

    def pixel(self, point: Point) -> tuple[int, int]:
        """Converts world coordinates to pixels.

        Args:
            point: (x, y) in world coordinates.

        Returns:
            (column, row); row 0 is the top one.
        """
        x, y = point
        column = math.floor(self.origin[0] + self.scale * float(x))
        return column, self.height - 1 - math.floor(self.origin[1] + self.scale * float(y))

    def polygon(self, corners: Iterable[Point], colour: Colour) -> None:
        """Draws a filled polygon.

        Args:
            corners: the corners in their order, in world coordinates.
            colour: (red, green, blue), each from 0 to 255.
        """
        self._draw.polygon([self.pixel(c) for c in corners], fill=colour)

    def line(self, points: Iterable[Point], colour: Colour = BLACK, width: int = 1) -> None:
        """Draws straight lines from each point to the next.

        Args:
            points: the points in their order, in world coordinates.
            colour: (red, green, blue), each from 0 to 255.
            width: the width of the lines [pixels].
        """
        self._draw.line([self.pixel(p) for p in points], fill=colour, width=width)

    def circle(self, centre: Point, radius: float, colour: Colour) -> None:
        """Draws a filled circle.

        Args:
            centre: the centre, in world coordinates.
            radius: the radius, in units of world coordinates.
            colour: (red, green, blue), each from 0 to 255.
        """
        (x, y), r = self.pixel(centre), math.floor(self.scale * float(radius))
        self._draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)

    def array(self) -> NDArray[np.uint8]:
        """A copy of the picture, an array (height, width, 3) of uint8."""
        return np.array(self._image, np.uint8)
