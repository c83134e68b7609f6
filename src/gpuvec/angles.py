"""Sine, cosine and wrapping of angles, in float32 arithmetic alone.

The library functions of a GPU have a slow path for huge angles, with float64, branches and a table in local memory. Here
whole turns are taken off in two parts: a number of turns times the first part, which has few bits, is exact in float32.
That holds for thousands of turns, and beyond them a float32 angle no longer says where in its turn it is.
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
WHOLE = 1.5 * 2.0**23  # a float32 that this is added to is rounded to an integer, whose lowest bits are the sum's


def wrap(angle: float) -> float:
    """`angle` [rad] less whole turns, in [-pi, pi]; exact to 2e-7 up to 10,000 rad."""
    turns = np.float32(angle * TURNS_PER_RADIAN + WHOLE) - WHOLE
    return angle - turns * TURN - turns * TURN_REST  # type: ignore[return-value]  # float32


def sincos(angle: float) -> tuple[float, float]:
    """(sine, cosine) of `angle` [rad], to 1e-7 up to 100 rad and to 2e-7 up to 10,000 rad.

    The polynomials for [-pi/4, pi/4] are those of Cephes (Moshier, 1989).
    """
    shifted = np.float32(angle * QUARTERS_PER_RADIAN + WHOLE)
    quarters, k = shifted - WHOLE, shifted.view(np.int32)
    r = angle - quarters * QUARTER - quarters * QUARTER_REST
    r2 = r * r
    s = r + r * r2 * (-1.6666654611e-1 + r2 * (8.3321608736e-3 - r2 * 1.9515295891e-4))
    c = 1.0 - 0.5 * r2 + r2 * r2 * (4.166664568298827e-2 + r2 * (-1.388731625493765e-3 + r2 * 2.443315711809948e-5))
    sin, cos = (c, s) if k & 1 else (s, c)
    return -sin if k & 2 else sin, -cos if (k + 1) & 2 else cos  # type: ignore[return-value]  # float32
