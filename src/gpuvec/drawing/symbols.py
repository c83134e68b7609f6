"""The symbols of agents in pictures and replays: polygons that differ in shape from role to role."""

from __future__ import annotations

from collections.abc import Sequence

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
