"""The quotient of two whole numbers, without a division where one of them is a parameter.

A GPU divides in a dozen instructions, among them a branch for numbers that are very small or large.
"""

from __future__ import annotations

import numpy as np

SPLIT = 4097.0  # 2**12 + 1, by which a float32 falls apart into two halves (Dekker, 1971)
EXACT = 3146  # up to here the sum is rounded as a quotient is, whether or not a machine fuses its last two operations


def fraction(part: int, whole: int) -> float:
    """`part` / `whole`, correctly rounded, for 0 <= `part` <= `whole`. Where `whole` is a parameter it costs two products.

    They are those with both halves of 1 / `whole`, and the first of them is exact.
    """
    a, b = np.float32(part), np.float32(whole)
    if whole > EXACT:
        return a / b  # type: ignore[return-value]  # float32
    inverse = 1.0 / b
    shifted = inverse * SPLIT
    high = shifted - (shifted - inverse)
    low = (1.0 - high * b) / b
    return a * high + a * low  # type: ignore[return-value]  # float32
