"""Statistics of runs that differ in their seed alone. S is the number of seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MIN_SEEDS = 3  # for an interval of confidence
BOOTSTRAP_SAMPLES = 10_000
MAX_SAMPLED_VALUES = 2**22  # at once
NORMAL_975 = 1.959963984540054
T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The 97.5 % quantiles of Student's t distribution with 1 to 10 degrees of freedom."""


class Estimate(NamedTuple):
    """A number with its 95 % interval, both nan if there are too few seeds for one."""

    value: float
    low: float
    high: float


def t_quantile(degrees: int) -> float:
    """Returns the 97.5 % quantile of Student's t distribution, to a thousandth of its value.

    Args:
        degrees: the degrees of freedom, at least 1. Above 10 it is the expansion 26.7.5 of Abramowitz and Stegun.
    """
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    z = NORMAL_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def mean_and_interval(values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns the mean over seeds with its interval.

    Args:
        values: (S, ...), finite.

    Returns:
        The mean and both ends of the interval, (...). It is the 95 % t interval for three seeds and more, from the lowest to
        the highest value for two, and the mean itself for one.
    """
    mean = values.mean(0)
    if len(values) < MIN_SEEDS:
        return mean, values.min(0), values.max(0)
    half_width = t_quantile(len(values) - 1) * values.std(0, ddof=1) / len(values) ** 0.5
    return mean, mean - half_width, mean + half_width


def interquartile_mean(values: FloatArray) -> FloatArray:
    """Returns the mean of the middle half of the values, (...).

    Where a quarter of S is not an integer, the values at both ends of the middle half count in part. See Agarwal, Schwarzer,
    Castro, Courville and Bellemare, 2021, arXiv:2108.13264.

    Args:
        values: (..., S), finite.
    """
    num_values = values.shape[-1]
    # Value k covers the part of the distribution from k / S to (k + 1) / S.
    edges = np.arange(num_values + 1) / num_values
    weights = np.diff(edges.clip(0.25, 0.75)) / 0.5
    mean: FloatArray = np.sort(values, axis=-1) @ weights
    return mean


def bootstrap_interval(values: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> tuple[float, float]:
    """Returns the 95 % percentile interval of a statistic over samples of the seeds with replacement.

    Args:
        values: (S,), finite. Equal values give equal intervals: the samples are the same in each call.
        statistic: maps (..., S) to (...).
    """
    rng = np.random.default_rng(0)
    # The samples of thousands of seeds are drawn in parts, since all of them would take gigabytes.
    part = max(1, min(BOOTSTRAP_SAMPLES, MAX_SAMPLED_VALUES // len(values)))
    sizes = [min(part, BOOTSTRAP_SAMPLES - begin) for begin in range(0, BOOTSTRAP_SAMPLES, part)]
    statistics = [statistic(values[rng.integers(len(values), size=(size, len(values)))]) for size in sizes]
    low, high = np.quantile(np.concatenate(statistics), [0.025, 0.975])
    return float(low), float(high)


def estimate(values: FloatArray) -> Estimate:
    """Returns the interquartile mean of three seeds and more with its bootstrap interval; of fewer the mean alone.

    Args:
        values: (S,), finite, at least one.
    """
    if len(values) < MIN_SEEDS:
        return Estimate(float(values.mean()), np.nan, np.nan)
    return Estimate(float(interquartile_mean(values)), *bootstrap_interval(values, interquartile_mean))
