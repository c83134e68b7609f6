"""The trials of a search as one HTML file that needs no network, by plotly: parallel coordinates whose axes select trials."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np

from gpuvec.cli.curves_html import figure_page
from gpuvec.cli.plots import import_extra
from gpuvec.cli.terminal import printable
from gpuvec.learners.population.search.search_space import FloatArray, SearchParameter, Trials

# From low to high scores, in hues for people with any colour vision. All are legible on white and on dark paper.
COLOR_SCALE = ((0.0, "#0072b2"), (0.5, "#8c8080"), (1.0, "#d55e00"))
NUM_TICKS = 6  # of a logarithmic axis


def draw_trials_html(trials: Trials) -> str:
    """Returns an HTML page, which contains plotly.js.

    Args:
        trials: the trials.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    return figure_page(draw_trials_figure(trials), "trials", f"{trials.env}: trials")


def draw_trials_figure(trials: Trials) -> Any:
    """Returns the `plotly.graph_objects.Figure` of the trials.

    Args:
        trials: the trials; those without a score are left out.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    graph_objects = import_extra("plotly.graph_objects", "plotly")
    is_scored = np.isfinite(trials.scores)
    scores = trials.scores[is_scored]
    dimensions = [_dimension(each, trials.values[each.name][is_scored]) for each in trials.parameters]
    dimensions.append({"label": "score", "values": scores.tolist()})
    line = {"color": scores.tolist(), "colorscale": [list(stop) for stop in COLOR_SCALE], "showscale": True}
    figure = graph_objects.Figure(graph_objects.Parcoords(line=line, dimensions=dimensions, labelangle=-25))
    figure.update_layout(title={"text": html.escape(printable(trials.env))}, margin={"t": 110})
    return figure


def _dimension(parameter: SearchParameter, values: FloatArray) -> dict[str, Any]:
    """Returns the axis of a setting; plotly has none that is logarithmic."""
    low, high = parameter.low, parameter.high
    title = html.escape(printable(parameter.name))
    if parameter.scale == "linear":
        return {"label": title, "values": values.tolist(), "range": [low, high]}
    ticks = np.linspace(math.log10(low), math.log10(high), NUM_TICKS)
    texts = [f"{10**tick:.2g}" for tick in ticks]
    return {
        "label": title, "values": np.log10(values).tolist(), "range": [ticks[0], ticks[-1]], "tickvals": ticks.tolist(),
        "ticktext": texts,
    }  # fmt: skip
