"""Random numbers of an environment: a draw is a pure function of a key and a draw number.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011, "Parallel random numbers: as easy as 1, 2, 3"). There is no
generator state to store and no order of calls to keep, so a draw gives the same number on every backend, for any
number of environments and any launch shape. The functions are plain Python: they run as they stand, and the engine
compiles them together with the environment that calls them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# `int` in these signatures is 32 bits wide once compiled; the casts below say which sign it has.
# mypy sees NumPy's scalars as no ints, hence the ignores on assignments between the two.


class Key(NamedTuple):
    """What a draw depends on besides its number.

    `reset(seed=s)` gives row k the stream (s, k); `reset(seed=[...])` gives row k the stream (seed_k, 0).
    """

    seed: int  # low word of the seed
    seed_high: int  # high word of the seed
    row: int  # of the environment in its batch; 0 for a row that was seeded by itself
    episode: int  # grows with every reset of the row
    step: int  # within the episode; 0 in a reset


def philox(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Philox4x32-10: four random uint32 from a 128-bit counter (c0..c3) and a 64-bit key (k0, k1)."""
    x0, x1, x2, x3 = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)
    w0, w1 = np.uint32(k0), np.uint32(k1)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * np.uint64(x0)
        p1 = np.uint64(0xCD9E8D57) * np.uint64(x2)
        low0, high0 = np.uint32(p0), np.uint32(p0 >> np.uint64(32))
        low1, high1 = np.uint32(p1), np.uint32(p1 >> np.uint64(32))
        # The xor of two uint32 has 64 bits once compiled: with these casts a round is two wide products and two xors of 32.
        x0, x1, x2, x3 = np.uint32(high1 ^ x1 ^ w0), low1, np.uint32(high0 ^ x3 ^ w1), low0
        # The key's Weyl sequence wraps: written with 64 bits, because NumPy scalars warn when 32 overflow.
        w0 = np.uint32((np.uint64(w0) + np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF))
        w1 = np.uint32((np.uint64(w1) + np.uint64(0xBB67AE85)) & np.uint64(0xFFFFFFFF))
    return x0, x1, x2, x3  # type: ignore[return-value]  # uint32 scalars


def word(key: Key, draw: int) -> int:
    """The uint32 of draw number `draw`. Four consecutive draws share a block, which a compiler computes once."""
    w = philox(key.episode, key.step, draw >> 2, key.seed_high, key.seed, key.row)
    k = draw & 3
    return _either(_either(w[0], w[1], k & 1), _either(w[2], w[3], k & 1), k >> 1)


def _either(first: int, second: int, which: int) -> int:
    """The second uint32 if `which` is 1, the first if it is 0; without a branch, so that draws are reckoned side by side."""
    mask = np.uint32(np.uint64(which) * np.uint64(0xFFFFFFFF))
    return np.uint32(first ^ np.uint32((first ^ second) & mask))  # type: ignore[return-value]  # uint32


def unit(word: int) -> float:
    """A uint32 as a float32 in [0, 1), from its upper 24 bits."""
    return np.float32(np.uint32(np.uint32(word) >> np.uint32(8))) * np.float32(2.0**-24)  # type: ignore[return-value]  # float32


def uniform(key: Key, draw: int, low: float, high: float) -> float:
    """A float32 in [low, high).

    Args:
        key: as handed to `reset` or `step`.
        draw: a literal, different for every draw of one function (3 * i + 1 and the like for agent i).
        low: the lower bound.
        high: the upper bound.
    """
    return low + (high - low) * unit(word(key, draw))


def normal(key: Key, draw: int) -> float:
    """A float32 from the standard normal distribution (Box and Muller, 1958); takes draw numbers `draw` and `draw + 1`."""
    radius = math.sqrt(np.float32(-2.0) * math.log(np.float32(1.0) - unit(word(key, draw))))
    return radius * math.cos(np.float32(2.0 * math.pi) * unit(word(key, draw + 1)))


def randint(key: Key, draw: int, low: int, high: int) -> int:
    """An int32 in [low, high); `draw` as for `uniform`.

    The word is scaled (Lemire, 2019), not divided: the bias is below (high - low) / 2**32.
    """
    span = np.uint64(np.uint32(high - low))
    drawn = np.uint64(np.uint32(word(key, draw)))
    return np.int32(np.int64(low) + np.int64((drawn * span) >> np.uint64(32)))  # type: ignore[return-value]  # int32
