"""Running mean and variance of a stream of rows, merged batch by batch.

Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979), which also
Gymnasium's `RunningMeanStd` uses. The three running values are float64 where the framework has it, for in float32 a count
stops at 2**24 and late batches vanish; they are few, and the rows themselves stay float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.vector.wrappers.wrapper_state import WrapperState

NAMES = ("mean", "var", "count")


def initial(shape: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Mean 0 and variance 1 of rows of `shape`, with next to no weight."""
    return {"mean": np.zeros(shape), "var": np.ones(shape), "count": np.array(1e-4)}


def update(b: WrapperState, rows: Any, mask: Any = None) -> None:
    """Merges `rows` (E, ...) into the moments kept in `b`; with `mask` (E,) bool only those rows. No row is no change."""
    ns, xp = b.ns, b.ns.xp
    n: Any = rows.shape[0]
    if mask is not None:
        n = xp.sum(mask)
        mask = mask.reshape((-1,) + (1,) * (rows.ndim - 1))

    def mean_of(values: Any) -> Any:
        if mask is None:
            return ns.sum_rows(values) / n
        return ns.sum_rows(xp.where(mask, values, xp.zeros_like(values))) / xp.clip(n, 1, None)

    # Two passes: one pass over squares cancels where a mean is large beside its deviation.
    mean = mean_of(rows)
    deviation = rows - ns.float32(mean)
    var = mean_of(deviation * deviation)
    total = b["count"] + n
    old, weight = b["count"] / total, n / total
    delta = mean - b["mean"]
    b["var"] = old * b["var"] + weight * (var + old * delta * delta)
    b["mean"] = b["mean"] + weight * delta
    b["count"] = total


def scale(b: WrapperState, epsilon: float) -> Any:
    """1 / sqrt(var + epsilon) in float32."""
    return b.ns.float32(1 / b.ns.xp.sqrt(b["var"] + epsilon))
