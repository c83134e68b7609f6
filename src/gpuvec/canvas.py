"""A surface on the host for the pictures that `draw` functions make, over Pillow."""

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
    """A white picture on which to draw in world coordinates, x to the right and y upwards.

    Args:
        width: of the picture [pixels].
        height: of the picture [pixels].
        scale: pixels per unit of the world.
        origin: where the world's (0, 0) lies, in pixels from the lower left corner.

    Raises:
        MissingExtraError: Pillow is not installed.
    """

    def __init__(self, width: int, height: int, scale: float = 1.0, origin: Point = (0.0, 0.0)) -> None:
        try:
            from PIL import Image, ImageDraw  # here, so that an environment which draws nothing needs no Pillow
        except ImportError as error:
            raise MissingExtraError(
                "Pictures need Pillow, which is not installed. Install the extra: pip install 'gpuvec[render]'."
            ) from error
        self.width, self.height, self.scale, self.origin = width, height, scale, origin
        self._image: Any = Image.new("RGB", (width, height), WHITE)
        self._draw: Any = ImageDraw.Draw(self._image)

    def pixel(self, point: Point) -> tuple[int, int]:
        """(column, row) of a point of the world; row 0 is the top one."""
        x, y = point
        column = math.floor(self.origin[0] + self.scale * float(x))
        return column, self.height - 1 - math.floor(self.origin[1] + self.scale * float(y))

    def polygon(self, corners: Iterable[Point], colour: Colour) -> None:
        """A filled polygon."""
        self._draw.polygon([self.pixel(c) for c in corners], fill=colour)

    def line(self, points: Iterable[Point], colour: Colour = BLACK, width: int = 1) -> None:
        """Straight lines from each point to the next, `width` pixels wide."""
        self._draw.line([self.pixel(p) for p in points], fill=colour, width=width)

    def circle(self, centre: Point, radius: float, colour: Colour) -> None:
        """A filled circle."""
        (x, y), r = self.pixel(centre), math.floor(self.scale * float(radius))
        self._draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)

    def array(self) -> NDArray[np.uint8]:
        """The picture so far: (height, width, 3) uint8, a copy."""
        return np.array(self._image, np.uint8)
