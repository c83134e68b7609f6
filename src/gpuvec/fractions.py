"""The quotient of two integers, without a division at run time if the divisor is a constant.

A GPU divides in a dozen instructions, among them a branch for numbers that are very small or large.
"""

from __future__ import annotations

import numpy as np

SPLITTER = 4097.0  # 2**12 + 1: multiplying by it splits a float32 into two halves of 12 bits (Dekker, 1971)
# The largest divisor for which the sum of two products is rounded as the quotient is, with or without a fused multiply-add.
MAX_EXACT_DIVISOR = 3146


def fraction(part: int, whole: int) -> float:
    """Computes `part` / `whole`, correctly rounded.

    If `whole` is a constant of the compiled code, as parameters are, the cost is two products: those of `part` with the two
    halves of 1 / `whole`, of which the first is exact.

    Args:
        part: an int32 from 0 to `whole`.
        whole: an int32 greater than 0.

    Returns:
        The quotient, a float32.
    """
    a, b = np.float32(part), np.float32(whole)
    if whole > MAX_EXACT_DIVISOR:
        return a / b  # type: ignore[return-value]  # float32
    inverse = 1.0 / b
    shifted = inverse * SPLITTER
    high = shifted - (shifted - inverse)
    low = (1.0 - high * b) / b
    return a * high + a * low  # type: ignore[return-value]  # float32
