"""Checks the position fields of a `NearestNeighbors` search, whose differences must bound the distance from below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuvec.engine.compiler.diagnostics import authoring_error
from gpuvec.engine.compiler.types import EnvState
from gpuvec.observations import NearestNeighbors

ROUNDING = np.float32(1e-6)  # the relative error that a distance may have; the cell list allows for it


def check_position_bound(search: NearestNeighbors, i: int, distances: NDArray[np.float32], s: EnvState) -> None:
    """Compares the distances of one agent with the bound that the search declares.

    Args:
        search: the search; without `position` nothing is compared.
        i: the agent that searches.
        distances: (A,) float32, from agent `i` to each agent.
        s: the state, in which each position field is an (A,) float32 array.

    Raises:
        AuthoringError: a distance is less than the bound of a declared field.
    """
    for field in search.position:
        values = np.asarray(getattr(s, field), np.float32)
        with np.errstate(all="ignore"):
            differences = np.abs(values - values[i])
            bounds = differences * differences if search.squared else differences
            is_less = (distances < bounds * (1 - ROUNDING)) | (~np.isfinite(differences) & (distances < np.inf))
        for j in np.flatnonzero(is_less)[:1]:
            kind = "squared difference" if search.squared else "difference"
            raise authoring_error(
                search.distance,
                f"the distance of agents {i} and {j} is {distances[j]}, less than their {kind} in {field!r}, {bounds[j]}, "
                f"though the search has position={search.position}, squared={search.squared}; declare fields and `squared` "
                "so that no distance is less, or leave position out: the search then visits all agents",
            )
