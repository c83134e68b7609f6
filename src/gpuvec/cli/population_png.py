"""The results of a population as a PNG file, by matplotlib: quantiles over the training, and the return by hyper-parameter."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from gpuvec.cli.curves_png import DOTS_PER_INCH, PANEL_HEIGHT, WIDTH
from gpuvec.cli.plots import COLORS, import_extra
from gpuvec.cli.terminal import printable
from gpuvec.learners.population.results.population_history import FloatArray, PopulationHistory

BANDS = ((0.05, 0.95, 0.15), (0.25, 0.75, 0.3))  # quantiles at both edges, and the opacity between them
LOGARITHMIC_RATIO = 30.0  # of the largest value to the smallest one, from which an axis is logarithmic
NUM_BINS = 12  # of a hyper-parameter, for the medians


def draw_population(history: PopulationHistory, title: str, metric_name: str = "return") -> bytes:
    """Returns a PNG file.

    Args:
        history: the numbers of all agents.
        title: the title of the picture.
        metric_name: the metric whose quantiles are drawn over the training.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: there is no such metric.
    """
    file = io.BytesIO()
    draw_population_figure(history, title, metric_name).savefig(file, format="png", dpi=DOTS_PER_INCH)
    return file.getvalue()


def draw_population_figure(history: PopulationHistory, title: str, metric_name: str = "return") -> Any:
    """Returns the `matplotlib.figure.Figure`: a panel of quantiles, and one for each hyper-parameter in which agents differ.

    Args:
        history, title, metric_name: as in `draw_population`.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: there is no such metric.
    """
    if metric_name not in history.metrics:
        raise ValueError(f"the population has no metric {metric_name!r}; it has {', '.join(history.metrics)}.")
    figure_module, ticker = import_extra("matplotlib.figure", "plot"), import_extra("matplotlib.ticker", "plot")
    columns = {name: column for name, column in history.hyperparameters.items() if len(np.unique(column)) > 1}
    figure = figure_module.Figure(figsize=(WIDTH, PANEL_HEIGHT * (1 + len(columns))), layout="constrained")
    panels = figure.subplots(1 + len(columns), 1, squeeze=False)[:, 0]
    _draw_quantiles(panels[0], history, metric_name)
    panels[0].set_title(printable(title), fontsize=9, parse_math=False)
    panels[0].xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    for axes, (name, column) in zip(panels[1:], columns.items(), strict=True):
        is_logarithmic = bool(column.min() > 0 and column.max() / column.min() >= LOGARITHMIC_RATIO)
        draw_hyperparameter(axes, name, column, history.final_returns(), is_logarithmic)
    for axes in panels:
        style_axes(axes)
    return figure


def style_axes(axes: Any) -> None:
    """Draws a grid and small numbers in a panel.

    Args:
        axes: the panel.
    """
    axes.tick_params(labelsize=8)
    axes.grid(True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_quantiles(axes: Any, history: PopulationHistory, metric_name: str) -> None:
    values = history.metrics[metric_name].astype(np.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN")  # iterations in which no agent has a number
        levels = [level for low, high, _ in BANDS for level in (low, high)]
        edges = np.nanquantile(values, [*levels, 0.5], axis=1)
    handles = [
        axes.fill_between(history.steps, edges[2 * k], edges[2 * k + 1], color=COLORS[0], alpha=opacity, linewidth=0)
        for k, (_, _, opacity) in enumerate(BANDS)
    ]
    handles += axes.plot(history.steps, edges[-1], color=COLORS[0], linewidth=1.5)
    texts = [*(f"{low:.0%} to {high:.0%} of agents" for low, high, _ in BANDS), "median"]
    axes.legend(handles, texts, fontsize=7, frameon=False)
    axes.set_xlabel("environment steps of an agent", fontsize=8)
    axes.set_ylabel(printable(metric_name.replace("_", " ")), fontsize=8, parse_math=False)


def draw_hyperparameter(axes: Any, name: str, column: FloatArray, returns: FloatArray, is_logarithmic: bool) -> None:
    """Draws the final returns by a hyper-parameter, with medians.

    Args:
        axes: the panel.
        name: of the hyper-parameter.
        column: its values, (N,).
        returns: (N,); nan where there is none.
        is_logarithmic: whether the axis of the values is.
    """
    is_finite = np.isfinite(returns)
    x, y = column[is_finite], returns[is_finite]
    axes.scatter(x, y, s=4, color=COLORS[0], alpha=0.4, linewidths=0)
    if len(x):
        edges = np.quantile(x, np.linspace(0, 1, NUM_BINS + 1))
        bin_numbers = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, NUM_BINS - 1)
        used_bins = [k for k in range(NUM_BINS) if (bin_numbers == k).any()]
        medians = [(np.median(x[bin_numbers == k]), np.median(y[bin_numbers == k])) for k in used_bins]
        handles = axes.plot(*zip(*medians, strict=True), color=COLORS[1], linewidth=1.5)
        axes.legend(handles, [f"median of {NUM_BINS} equally large parts"], fontsize=7, frameon=False)
    if is_logarithmic:
        axes.set_xscale("log")
    axes.set_xlabel(printable(name), fontsize=8, parse_math=False)
    axes.set_ylabel("final return", fontsize=8)
