"""Statistical tests of 32-bit random words, which return p-values; of true random words these are uniform in (0, 1).

Most tests are in Knuth, The Art of Computer Programming, volume 2, section 3.3; birthday spacings are Marsaglia's (1985).
"""

import numpy as np
from scipy import stats

# The probability that true random words have a failure in one battery is lower than this, by Bonferroni's inequality.
FALSE_POSITIVE_RATE = 1e-6
LAGS = (1, 2, 4, 32)


def failures(p_values):
    """Returns {name: p} of the p-values that are failures.

    Args:
        p_values: {name: p}; a p near 1 is a failure as well as one near 0, since numbers can be too uniform.
    """
    limit = FALSE_POSITIVE_RATE / len(p_values)
    return {name: p for name, p in p_values.items() if not 2.0 * min(p, 1.0 - p) >= limit}


def battery(words):
    """Returns {name: p} of all tests.

    Args:
        words: (n,) uint32, a sequence that should be independent and uniform; n is a multiple of 4096.
    """
    x = words.astype(np.float64) / 2.0**32
    p_values = {
        "monobit": monobit(words),
        "runs": runs(words),
        "bytes": byte_counts(words),
        "birthdays": birthday_spacings(words),
    }
    p_values["uniform"] = stats.kstest(x, "uniform").pvalue
    for lag in LAGS:
        p_values[f"xor of neighbors, lag {lag}"] = monobit(words[lag:] ^ words[:-lag])
        p_values[f"serial correlation, lag {lag}"] = correlation(x[lag:], x[:-lag])
        p_values[f"pairs of high bits, lag {lag}"] = pairs(words >> 26, lag)
        p_values[f"pairs of low bits, lag {lag}"] = pairs(words & 63, lag)
    return p_values


def bit_columns(words):
    """Returns the bits of `words`, (n, 32) of 0 and 1."""
    return np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(-1, 4), axis=1)


def monobit(words):
    """Tests the number of ones of each of the 32 bits."""
    return p_of_halves(bit_columns(words).sum(axis=0, dtype=np.int64), len(words))


def runs(words):
    """Tests how often each of the 32 bits changes along the sequence."""
    bits = bit_columns(words)
    return p_of_halves((bits[1:] != bits[:-1]).sum(axis=0), len(words) - 1)


def p_of_halves(counts, trials):
    """Returns the p-value of independent counts of `trials` events with the probability 1/2."""
    z = (counts - trials / 2) / np.sqrt(trials / 4)
    return stats.chi2.sf((z**2).sum(), len(counts))


def byte_counts(words):
    """Tests how often each byte occurs."""
    return stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue


def pairs(symbols, lag):
    """Tests how often each pair of symbols of six bits occurs at distance `lag`, in disjoint pairs."""
    disjoint = symbols[: len(symbols) // (2 * lag) * 2 * lag].reshape(-1, 2, lag).astype(np.int64)
    return stats.chisquare(np.bincount((disjoint[:, 0] * 64 + disjoint[:, 1]).ravel(), minlength=4096)).pvalue


def correlation(x, y):
    """Tests the correlation of two sequences: of n independent pairs it is normal with standard deviation 1 / sqrt(n)."""
    return stats.norm.cdf(np.corrcoef(x, y)[0, 1] * np.sqrt(len(x)))


def birthday_spacings(words):
    """Tests the number of equal spacings of 4096 birthdays in a year of 2**32 days, which is Poisson with mean 4."""
    groups = np.sort(words.reshape(-1, 4096).astype(np.int64), axis=1)
    spacings = np.sort(np.diff(groups, axis=1), axis=1)
    return p_of_poisson((spacings[:, 1:] == spacings[:, :-1]).sum(), 4.0 * len(groups))


def collisions(words):
    """Tests the number of equal words in an array of any shape; streams that overlap have many."""
    n = words.size
    return p_of_poisson(n - len(np.unique(words)), n**2 / 2.0**33)


def p_of_poisson(count, mean):
    """Returns the p-value of a count, with half the probability of the count itself."""
    return stats.poisson.sf(count, mean) + stats.poisson.pmf(count, mean) / 2
