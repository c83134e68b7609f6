"""Sorting networks: fixed lists of compare-and-exchange steps, so that values in registers are sorted without branches."""

from __future__ import annotations


def merge_exchange_pairs(count: int) -> list[tuple[int, int]]:
    """Pairs of indices of which each orders its two values, such that all pairs in sequence sort `count` values.

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
    """Pairs of indices of which each orders its two values, such that all pairs in sequence sort a bitonic sequence.

    Args:
        first: index of the first value.
        count: number of values, which rise and then fall. Where it is no power of two, the network of the next larger one
            applies, without its first values.
    """
    if count < 2:
        return []
    half = 1 << (count - 1).bit_length() - 1
    pairs = [(k, k + half) for k in range(first, first + count - half)]
    return pairs + bitonic_merge_pairs(first, count - half) + bitonic_merge_pairs(first + count - half, half)
