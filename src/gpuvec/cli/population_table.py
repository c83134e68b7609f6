"""Prints the results of a population."""

from __future__ import annotations

import numpy as np

from gpuvec.cli.terminal import print_lines
from gpuvec.cli.text_table import print_table
from gpuvec.learners.population.results.population_history import PopulationHistory

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def print_population(history: PopulationHistory, num_best: int) -> None:
    """Prints the quantiles of the final returns, the best agents, and those that were stopped.

    Args:
        history: the numbers of all agents.
        num_best: the number of agents in the table.
    """
    returns = history.final_returns()
    finite = returns[np.isfinite(returns)]
    if len(finite):
        values = "  ".join(f"{q:.0%} {x:.4g}" for q, x in zip(QUANTILES, np.quantile(finite, QUANTILES), strict=True))
        print_lines(f"return     {values}  of {len(finite):,} agents, mean {finite.mean():.4g}")
    columns = history.hyperparameters
    rows = [
        (str(rank), str(k), str(history.seeds[k]), f"{returns[k]:.4g}", *(f"{column[k]:.4g}" for column in columns.values()))
        for rank, k in enumerate(history.ranking()[:num_best], 1)
    ]
    print_table([("rank", "agent", "seed", "return", *columns), *rows])
    texts = history.fault_texts()
    for text in texts[:10]:
        print_lines(f"stopped    {text}")
    if len(texts) > 10:
        print_lines(f"stopped    {len(texts) - 10:,} more agents")
