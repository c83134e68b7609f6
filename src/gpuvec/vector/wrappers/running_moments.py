"""Running mean and variance of a stream of rows, updated with one batch at a time.

The formula is that of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances"
(1979), as in Gymnasium's `RunningMeanStd`. Mean, variance and count are float64 where the framework supports it: in float32 a
count stops at 2**24, and later batches have no effect. The rows themselves stay float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.vector.wrappers.wrapper_state import WrapperState


def initial_moments(shape: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns mean 0 and variance 1, with a count that is almost 0.

    Args:
        shape: the shape of one row.
    """
    return {"mean": np.zeros(shape), "var": np.ones(shape), "count": np.array(1e-4)}


def update_moments(buffers: WrapperState, rows: Any, mask: Any = None) -> None:
    """Updates the moments with a batch of rows.

    Args:
        buffers: the wrapper's arrays, with those of `initial_moments`.
        rows: the batch, (E, ...).
        mask: which rows count, (E,) bool; None for all. A batch without such a row changes nothing.
    """
    ns, xp = buffers.ns, buffers.ns.xp
    num_rows: Any = rows.shape[0]
    if mask is not None:
        num_rows = xp.sum(mask)
        mask = mask.reshape((-1,) + (1,) * (rows.ndim - 1))

    def mean_of(values: Any) -> Any:
        if mask is None:
            return ns.sum_rows(values) / num_rows
        return ns.sum_rows(xp.where(mask, values, xp.zeros_like(values))) / xp.clip(num_rows, 1, None)

    # Two passes, because the mean of squares less the square of the mean cancels where the mean is large.
    mean = mean_of(rows)
    deviation = rows - ns.float32(mean)
    var = mean_of(deviation * deviation)
    total = buffers["count"] + num_rows
    old_weight, new_weight = buffers["count"] / total, num_rows / total
    delta = mean - buffers["mean"]
    buffers["var"] = old_weight * buffers["var"] + new_weight * (var + old_weight * delta * delta)
    buffers["mean"] = buffers["mean"] + new_weight * delta
    buffers["count"] = total


def inverse_deviation(buffers: WrapperState, epsilon: float) -> Any:
    """Returns 1 / sqrt(var + epsilon) in float32, of the shape of one row.

    Args:
        buffers: the wrapper's arrays, with those of `initial_moments`.
        epsilon: a number that is added to the variance.
    """
    return buffers.ns.float32(1 / buffers.ns.xp.sqrt(buffers["var"] + epsilon))
