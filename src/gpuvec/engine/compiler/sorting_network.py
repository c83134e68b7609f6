"""Sorting networks, which sort values in registers without branches.

A network is a list of comparators. A comparator is a pair of indices: it exchanges the values at these indices unless they are
in ascending order.
"""

from __future__ import annotations


def merge_exchange_pairs(count: int) -> list[tuple[int, int]]:
    """Returns the comparators of a network that sorts `count` values.

    Source: Batcher's merge exchange; Knuth, "The Art of Computer Programming", volume 3, algorithm 5.2.2 M.
    """
    pairs, p = [], 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                candidates = ((i + j, i + j + k) for i in range(min(k, count - j - k)))
                pairs += [(a, b) for a, b in candidates if a // (2 * p) == b // (2 * p)]
            k //= 2
        p *= 2
    return pairs


def bitonic_merge_pairs(first: int, count: int) -> list[tuple[int, int]]:
    """Returns the comparators of a network that sorts a bitonic sequence.

    Args:
        first: index of the first value.
        count: number of values, which first increase and then decrease. If it is not a power of two, the network is that of
            the next larger power of two without the first values.
    """
    if count < 2:
        return []
    half = 1 << (count - 1).bit_length() - 1
    pairs = [(k, k + half) for k in range(first, first + count - half)]
    return pairs + bitonic_merge_pairs(first, count - half) + bitonic_merge_pairs(first + count - half, half)
