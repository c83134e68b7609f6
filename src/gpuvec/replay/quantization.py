"""Numbers that a replay shows, with as few levels as their curves and bars need.

Letters: T steps, A agents, n agents with details, D features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuvec.replay.document import TrackWriter

MANY_REWARDS = 20_000
REWARD_LEVELS = 32  # in the middle nine tenths of many different rewards
LEVELS = 4096  # from the lowest to the highest number of a curve, and in the middle nine tenths of few rewards
FEATURE_LEVELS = 127  # from 0 to the largest absolute value of a feature


def encode_rewards(rewards: NDArray[np.float32], tracks: TrackWriter) -> dict[str, Any]:
    """Returns the track of rewards. At most 256 different rewards are exact.

    Otherwise they have the levels that this module declares, with an error of at most one level. The sum of an agent's rewards
    up to any step has an error of half a level: the rounding error of one reward is corrected in the next.

    Args:
        rewards: (T, A).
        tracks: to which the track is added.
    """
    exact = tracks.add_exactly(rewards)
    if exact is not None:
        return exact
    finite = np.where(np.isfinite(rewards), rewards, 0.0).astype(np.float64)
    low, high = np.percentile(finite, (5, 95))
    levels = REWARD_LEVELS if rewards.size > MANY_REWARDS else LEVELS
    step = float(high - low or np.ptp(finite)) / levels
    returns = np.rint(np.cumsum(finite, 0) / step)
    rounded = step * np.diff(returns, axis=0, prepend=0.0)
    return tracks.add(np.where(np.isfinite(rewards), rounded, np.nan), step)


def encode_curve(values: NDArray[Any], tracks: TrackWriter) -> dict[str, Any]:
    """Returns the track of numbers that are shown as curves; integers are exact.

    Args:
        values: (T, ...) of floats, ints or bools.
        tracks: to which the track is added.
    """
    if values.dtype.kind != "f":
        return tracks.add(values)
    finite = values[np.isfinite(values)]
    return tracks.add(values, float(np.ptp(finite)) / LEVELS if finite.size else 0.0)


def encode_observation(observation: NDArray[Any], tracks: TrackWriter) -> dict[str, Any]:
    """Returns the tracks "observation" and "exponents" of observations.

    Feature k of an observation is `observation[..., k] * 2.0 ** exponents[0, k]`, with an error of at most 1/127 of the largest
    absolute value of the feature. Zeros are exact.

    Args:
        observation: (T, n, D).
        tracks: to which the tracks are added.
    """
    values = observation.astype(np.float64)
    largest = np.where(np.isfinite(values), np.abs(values), 0.0).max((0, 1))
    exponents = np.ceil(np.log2(np.where(largest > 0.0, largest, FEATURE_LEVELS) / FEATURE_LEVELS)).astype(np.int32)
    return {"observation": tracks.add(np.rint(np.ldexp(values, -exponents)), 1.0), "exponents": tracks.add(exponents[None])}
