"""The symbols of agents in pictures and replays: polygons that differ in shape from role to role."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Outline = NDArray[np.float64]
"""(N, 2): corners of a polygon around (0, 0) that is about 1 wide to each side; the heading is along x, y is upwards."""


def _arc(begin: float, end: float, radius: float, corners: int) -> Outline:
    """Returns corners of an arc, angles in degrees."""
    angles = np.radians(np.linspace(begin, end, corners))
    return radius * np.stack([np.cos(angles), np.sin(angles)], 1)


DART = np.array([(1.4, 0.0), (-1.0, 0.95), (-0.5, 0.0), (-1.0, -0.95)])
DROP = np.concatenate([[(1.3, 0.0)], _arc(50.0, 310.0, 0.8, 14)])
BAR = np.array([(1.0, 0.3), (0.6, 0.7), (-0.8, 0.7), (-0.8, -0.7), (0.6, -0.7), (1.0, -0.3)])
KITE = np.array([(1.3, 0.0), (0.0, 0.7), (-0.7, 0.0), (0.0, -0.7)])
DISC = _arc(0.0, 345.0, 0.9, 24)
SQUARE = 0.8 * np.array([(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)])
TRIANGLE = _arc(90.0, 330.0, 1.1, 3)
DIAMOND = _arc(0.0, 270.0, 1.1, 4)
WITH_HEADING = (DART, DROP, BAR, KITE)
WITHOUT_HEADING = (SQUARE, DISC, TRIANGLE, DIAMOND)


def symbol_of_role(role: int, has_heading: bool) -> Outline:
    """Returns the symbol of a role.

    Args:
        role: its number.
        has_heading: whether the symbol shows a heading.
    """
    symbols = WITH_HEADING if has_heading else WITHOUT_HEADING
    return symbols[role % len(symbols)]
