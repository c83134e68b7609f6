"""`fraction` equals a float32 division, on every backend."""

import numpy as np
from tests.support.tables import table

from gpuvec import fraction
from gpuvec.fractions import MAX_EXACT_DIVISOR


def fractions(w):
    """Fractions of two wholes that the compiler knows, and of one that is read from memory."""
    return fraction(w[0], 100), fraction(w[0], 2896), fraction(w[0], w[1])


class TestFraction:
    def test_equals_division_for_all_exact_divisors(self):
        for whole in range(1, MAX_EXACT_DIVISOR + 1):
            part = np.arange(whole + 1, dtype=np.float32)
            assert np.array_equal(fraction(part, whole), part / np.float32(whole)), whole

    def test_larger_divisors_divide(self):
        part = np.arange(1_000_001, dtype=np.float32)
        np.testing.assert_array_equal(fraction(part, 1_000_000), part / np.float32(1_000_000))

    def test_equals_division_on_every_backend(self, backend):
        whole = np.random.default_rng(0).integers(1, MAX_EXACT_DIVISOR + 1, 300 if backend == "simulator" else 200_000)
        part = (np.random.default_rng(1).uniform(0, 1, whole.size) * (whole + 1)).astype(np.int64).clip(max=whole)
        results = table(backend, fractions, np.stack([part, whole], 1), 3, np.float32)
        a = part.astype(np.float32)
        np.testing.assert_array_equal(
            results, np.stack([a / np.float32(100), a / np.float32(2896), a / whole.astype(np.float32)], 1)
        )
