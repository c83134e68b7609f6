"""How many agents of a population have learned CartPole, for our populations and those of other libraries alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.tools.measure import Figures

TARGET = 475.0  # return
FINAL_ITERATIONS = 50
POINTS = 16  # of the mean curve


def add_learning(figures: Figures, name: str, returns: Any, sources: Sequence[str]) -> None:
    """Adds the shares of agents at the target: at the end, and on average over the last iterations.

    Args:
        figures: where the rows are added.
        name: of the population.
        returns: (iterations, P): the mean return of the last episode in each environment of an agent; nan before the first one.
        sources: as in `Figures.add`.
    """
    last, final = returns[-1], returns[-FINAL_ITERATIONS:].mean(0)
    curve = [round(float(np.nanmean(row)), 1) for row in returns[:: -(-len(returns) // POINTS)]]
    mean = float(np.nanmean(last))
    figures.add(f"{name}.share_at_end", 100.0 * float((last >= TARGET).mean()), "%", sources, mean=mean, curve=str(curve))
    figures.add(f"{name}.share", 100.0 * float((final >= TARGET).mean()), "%", sources, mean=float(np.nanmean(final)))
