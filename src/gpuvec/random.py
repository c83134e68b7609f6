"""Random numbers of an environment: a draw is a pure function of a key and a draw number.

The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011, "Parallel random numbers: as easy as 1, 2, 3"). It is
counter-based: no state is stored and the order of calls does not matter, so a draw returns the same number on every device,
for any number of environments and any launch configuration. The functions are plain Python, which can be called as it is;
the engine compiles them together with the environment that calls them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# `int` in these signatures has 32 bits once compiled; the casts below say whether it is signed.
# For mypy a scalar of NumPy is no `int`, hence the ignores where one is returned as the other.


class Key(NamedTuple):
    """The values on which a draw depends besides its number; functions of environments receive one and pass it on.

    `reset(seed=s)` assigns the stream (s, k) to row k; `reset(seed=[...])` assigns the stream (seed_k, 0) to row k.
    """

    seed: int  # the low 32 bits of the seed
    seed_high: int  # the high 32 bits of the seed
    row: int  # the index of the environment in its batch; 0 for a row that has its own seed
    episode: int  # a counter that every reset of the row increases
    step: int  # the number of the step in the episode; 0 in a reset


def philox(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Computes a block of Philox4x32-10.

    Args:
        c0: bits 0 to 31 of the counter, uint32.
        c1: bits 32 to 63 of the counter.
        c2: bits 64 to 95 of the counter.
        c3: bits 96 to 127 of the counter.
        k0: bits 0 to 31 of the key, uint32.
        k1: bits 32 to 63 of the key.

    Returns:
        Four random uint32.
    """
    x0, x1, x2, x3 = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)
    w0, w1 = np.uint32(k0), np.uint32(k1)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * np.uint64(x0)
        p1 = np.uint64(0xCD9E8D57) * np.uint64(x2)
        low0, high0 = np.uint32(p0), np.uint32(p0 >> np.uint64(32))
        low1, high1 = np.uint32(p1), np.uint32(p1 >> np.uint64(32))
        # The xor of two uint32 has 64 bits once compiled. The casts make a round two wide products and two xors of 32 bits.
        x0, x1, x2, x3 = np.uint32(high1 ^ x1 ^ w0), low1, np.uint32(high0 ^ x3 ^ w1), low0
        # The Weyl sequence of the key wraps at 32 bits. It is computed in 64 bits, because scalars of NumPy warn of overflow.
        w0 = np.uint32((np.uint64(w0) + np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF))
        w1 = np.uint32((np.uint64(w1) + np.uint64(0xBB67AE85)) & np.uint64(0xFFFFFFFF))
    return x0, x1, x2, x3  # type: ignore[return-value]  # uint32 scalars


def key_of_set(key: Key, number: int) -> Key:
    """Returns the key of an index set of a multi-agent environment, with random numbers of its own.

    Args:
        key: the key of the agents.
        number: the number of the set; 0 for the agents.
    """
    return Key(key.seed, np.uint32(key.seed_high ^ np.uint32(number << 24)), key.row, key.episode, key.step)  # type: ignore[arg-type]  # uint32


def word(key: Key, draw: int) -> int:
    """Draws 32 random bits. Four consecutive numbers share a block of Philox, which the compiler computes once.

    Args:
        key: the key that `reset` or `step` received.
        draw: the number of the draw, different for every draw of one function.

    Returns:
        A uint32.
    """
    w = philox(key.episode, key.step, draw >> 2, key.seed_high, key.seed, key.row)
    k = draw & 3
    return _either(_either(w[0], w[1], k & 1), _either(w[2], w[3], k & 1), k >> 1)


def _either(first: int, second: int, which: int) -> int:
    """The second uint32 if `which` is 1, the first if it is 0. Without a branch, draws are computed in parallel."""
    mask = np.uint32(np.uint64(which) * np.uint64(0xFFFFFFFF))
    return np.uint32(first ^ np.uint32((first ^ second) & mask))  # type: ignore[return-value]  # uint32


def unit(word: int) -> float:
    """Converts random bits to a number in [0, 1).

    Args:
        word: a uint32, of which the upper 24 bits are used.

    Returns:
        A float32.
    """
    return np.float32(np.uint32(np.uint32(word) >> np.uint32(8))) * np.float32(2.0**-24)  # type: ignore[return-value]  # float32


def uniform(key: Key, draw: int, low: float, high: float) -> float:
    """Draws a number from the uniform distribution.

    Args:
        key: the key that `reset`, `step` or a phase received.
        draw: the number of the draw, a literal that differs for every draw of one function; with many agents an expression
            such as `3 * i + 1` for agent i.
        low: the lower bound, inclusive.
        high: the upper bound, exclusive.

    Returns:
        A float32 in [low, high).
    """
    return low + (high - low) * unit(word(key, draw))


def normal(key: Key, draw: int) -> float:
    """Draws a number from the standard normal distribution (Box and Muller, 1958).

    Args:
        key: the key that `reset`, `step` or a phase received.
        draw: the first of the two numbers that this draw uses, `draw` and `draw + 1`.

    Returns:
        A float32.
    """
    radius = math.sqrt(np.float32(-2.0) * math.log(np.float32(1.0) - unit(word(key, draw))))
    return radius * math.cos(np.float32(2.0 * math.pi) * unit(word(key, draw + 1)))


def randint(key: Key, draw: int, low: int, high: int) -> int:
    """Draws an integer from the uniform distribution.

    Random bits are scaled and not divided (Lemire, 2019). The bias is less than (high - low) / 2**32.

    Args:
        key: the key that `reset`, `step` or a phase received.
        draw: the number of the draw, as for `uniform`.
        low: the lower bound, inclusive, int32.
        high: the upper bound, exclusive, int32.

    Returns:
        An int32 in [low, high).
    """
    span = np.uint64(np.uint32(high - low))
    random_bits = np.uint64(np.uint32(word(key, draw)))
    return np.int32(np.int64(low) + np.int64((random_bits * span) >> np.uint64(32)))  # type: ignore[return-value]  # int32
