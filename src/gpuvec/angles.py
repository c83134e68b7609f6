"""Sine, cosine and wrapping of angles, in float32 arithmetic alone.

The library functions of a GPU have a slow path for huge angles, with float64, branches and a table in local memory. Here
2 pi is the sum of two constants (Cody and Waite, 1980). The first has few bits, so that its product with the number of whole
turns is exact in float32 for thousands of turns. Beyond them a float32 angle does not resolve the position within a turn.
"""

from __future__ import annotations

import math

import numpy as np

QUARTER = 1.5703125  # pi / 2 in two parts
QUARTER_REST = 0.5 * math.pi - QUARTER
QUARTERS_PER_RADIAN = 2.0 / math.pi
TURN = 6.28125  # 2 pi in two parts
TURN_REST = 2.0 * math.pi - TURN
TURNS_PER_RADIAN = 0.5 / math.pi
ROUNDER = 1.5 * 2.0**23  # adding it to a float32 rounds that to an integer, whose lowest bits are those of the sum


def wrap(angle: float) -> float:
    """Subtracts whole turns from an angle.

    Args:
        angle: a float32 [rad].

    Returns:
        A float32 in [-pi, pi], exact to 2e-7 for angles up to 10,000 rad.
    """
    num_turns = np.float32(angle * TURNS_PER_RADIAN + ROUNDER) - ROUNDER
    return angle - num_turns * TURN - num_turns * TURN_REST  # type: ignore[return-value]  # float32


def sincos(angle: float) -> tuple[float, float]:
    """Computes the sine and the cosine of an angle, with the polynomials of Cephes (Moshier, 1989) for [-pi/4, pi/4].

    Args:
        angle: a float32 [rad].

    Returns:
        (sine, cosine), float32, exact to 1e-7 for angles up to 100 rad and to 2e-7 up to 10,000 rad.
    """
    shifted = np.float32(angle * QUARTERS_PER_RADIAN + ROUNDER)
    num_quarters, k = shifted - ROUNDER, shifted.view(np.int32)
    r = angle - num_quarters * QUARTER - num_quarters * QUARTER_REST
    r2 = r * r
    s = r + r * r2 * (-1.6666654611e-1 + r2 * (8.3321608736e-3 - r2 * 1.9515295891e-4))
    c = 1.0 - 0.5 * r2 + r2 * r2 * (4.166664568298827e-2 + r2 * (-1.388731625493765e-3 + r2 * 2.443315711809948e-5))
    sin, cos = (c, s) if k & 1 else (s, c)
    return -sin if k & 2 else sin, -cos if (k + 1) & 2 else cos  # type: ignore[return-value]  # float32
