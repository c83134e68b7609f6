"""The trials of a search as a PNG file, by matplotlib: lines from setting to setting, and the scores by each setting."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from gpuvec.cli.curves_png import DOTS_PER_INCH, PANEL_HEIGHT, WIDTH
from gpuvec.cli.plots import import_extra
from gpuvec.cli.population_png import draw_hyperparameter, style_axes
from gpuvec.cli.terminal import printable
from gpuvec.learners.population.search.search_space import Trials

COLOR_MAP = "viridis"  # which people with any form of colour blindness can read
LABEL_GAP = 0.03  # between an axis and its numbers, of its length


def draw_trials(trials: Trials) -> bytes:
    """Returns a PNG file.

    Args:
        trials: the trials.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    file = io.BytesIO()
    draw_trials_figure(trials).savefig(file, format="png", dpi=DOTS_PER_INCH)
    return file.getvalue()


def draw_trials_figure(trials: Trials) -> Any:
    """Returns the `matplotlib.figure.Figure`: a panel of parallel coordinates, and one for each setting.

    Args:
        trials: the trials; those without a score are left out.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure_module = import_extra("matplotlib.figure", "plot")
    figure = figure_module.Figure(figsize=(WIDTH, PANEL_HEIGHT * (1 + len(trials.parameters))), layout="constrained")
    panels = figure.subplots(1 + len(trials.parameters), 1, squeeze=False)[:, 0]
    _draw_parallel(panels[0], trials)
    panels[0].set_title(printable(trials.env), fontsize=9, parse_math=False)
    for axes, each in zip(panels[1:], trials.parameters, strict=True):
        draw_hyperparameter(axes, each.name, trials.values[each.name], trials.scores, each.scale == "log")
        style_axes(axes)
    return figure


def _draw_parallel(axes: Any, trials: Trials) -> None:
    """Draws each trial as a line from setting to setting and to its score, by which it is coloured, the best ones on top."""
    collections = import_extra("matplotlib.collections", "plot")
    order = np.argsort(trials.scores)[: np.isfinite(trials.scores).sum()]  # numpy sorts nan to the end
    scores = trials.scores[order]
    low, high = (float(scores[0]), float(scores[-1])) if len(scores) else (0.0, 0.0)
    columns = [each.units(trials.values[each.name][order]) for each in trials.parameters]
    columns.append((scores - low) / max(high - low, 1e-12))
    positions = np.arange(len(columns))
    lines = np.stack([np.broadcast_to(positions, (len(scores), len(columns))), np.stack(columns, 1)], 2)
    style = {"linewidths": 0.6, "alpha": 0.6, "cmap": COLOR_MAP}
    axes.add_collection(collections.LineCollection(list(lines), array=scores, **style))
    ranges = [(each.low, each.high) for each in trials.parameters] + [(low, high)]
    for position, (first, last) in zip(positions, ranges, strict=True):
        axes.vlines(position, 0.0, 1.0, color="black", linewidth=0.8)
        axes.text(position, -LABEL_GAP, f"{first:.3g}", fontsize=7, ha="center", va="top")
        axes.text(position, 1 + LABEL_GAP, f"{last:.3g}", fontsize=7, ha="center", va="bottom")
    axes.set_xlim(-0.3, len(columns) - 0.7)
    axes.set_ylim(-0.12, 1.12)
    names = [printable(each.name) for each in trials.parameters]
    axes.set_xticks(positions, [*names, "score"], fontsize=7, rotation=20, ha="right", parse_math=False)
    axes.set_yticks([])
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
