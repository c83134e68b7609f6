"""Statistical tests of 32-bit random words. Each returns p-values, which are uniform in (0, 1) for true randomness.

Most are in Knuth, The Art of Computer Programming, volume 2, section 3.3; birthday spacings are Marsaglia's (1985).
"""

import numpy as np
from scipy import stats

# Fewer false alarms than this among all p-values of one battery, by Bonferroni's inequality.
FALSE_ALARMS = 1e-6
LAGS = (1, 2, 4, 32)


def failures(p_values):
    """{name: p} of those p-values that true randomness gives in fewer than `FALSE_ALARMS` of all batteries.

    Args:
        p_values: {name: p}; a p near 1 is a fault as one near 0 is, as numbers can also be too even.
    """
    limit = FALSE_ALARMS / len(p_values)
    return {name: p for name, p in p_values.items() if not 2.0 * min(p, 1.0 - p) >= limit}


def battery(words):
    """{name: p} of a sequence.

    Args:
        words: (n,) uint32, which are to be independent and uniform; n is a multiple of 4096.
    """
    x = words.astype(np.float64) / 2.0**32
    found = {"monobit": monobit(words), "runs": runs(words), "bytes": byte_counts(words), "birthdays": birthday_spacings(words)}
    found["uniform"] = stats.kstest(x, "uniform").pvalue
    for lag in LAGS:
        found[f"xor of neighbors, lag {lag}"] = monobit(words[lag:] ^ words[:-lag])
        found[f"serial correlation, lag {lag}"] = correlation(x[lag:], x[:-lag])
        found[f"pairs of high bits, lag {lag}"] = pairs(words >> 26, lag)
        found[f"pairs of low bits, lag {lag}"] = pairs(words & 63, lag)
    return found


def bit_columns(words):
    """(n, 32) array of 0 and 1."""
    return np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(-1, 4), axis=1)


def monobit(words):
    """How many ones each of the 32 bits has."""
    return of_halves(bit_columns(words).sum(axis=0, dtype=np.int64), len(words))


def runs(words):
    """How often each of the 32 bits changes along the sequence."""
    bits = bit_columns(words)
    return of_halves((bits[1:] != bits[:-1]).sum(axis=0), len(words) - 1)


def of_halves(counts, trials):
    """The p-value of independent counts of `trials` events that have the probability 1/2."""
    z = (counts - trials / 2) / np.sqrt(trials / 4)
    return stats.chi2.sf((z**2).sum(), len(counts))


def byte_counts(words):
    """How often each byte occurs."""
    return stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue


def pairs(symbols, lag):
    """How often each pair of symbols of six bits occurs at that distance, in pairs that share no symbol."""
    whole = symbols[: len(symbols) // (2 * lag) * 2 * lag].reshape(-1, 2, lag).astype(np.int64)
    return stats.chisquare(np.bincount((whole[:, 0] * 64 + whole[:, 1]).ravel(), minlength=4096)).pvalue


def correlation(x, y):
    """Correlation of two sequences: of n independent pairs it is normal with the deviation 1 / sqrt(n)."""
    return stats.norm.cdf(np.corrcoef(x, y)[0, 1] * np.sqrt(len(x)))


def birthday_spacings(words):
    """Equal spacings among 4096 birthdays in a year of 2**32 days: Poisson of mean 4 for each group of 4096 words."""
    groups = np.sort(words.reshape(-1, 4096).astype(np.int64), axis=1)
    spacings = np.sort(np.diff(groups, axis=1), axis=1)
    return of_poisson((spacings[:, 1:] == spacings[:, :-1]).sum(), 4.0 * len(groups))


def collisions(words):
    """Equal words anywhere in an array of any shape: streams that overlap have many."""
    n = words.size
    return of_poisson(n - len(np.unique(words)), n**2 / 2.0**33)


def of_poisson(count, mean):
    """The p-value of a count, in the middle of its step."""
    return stats.poisson.sf(count, mean) + stats.poisson.pmf(count, mean) / 2
