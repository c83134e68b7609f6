"""Learning curves as a PNG file, by matplotlib."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

from gpuvec.cli.plots import COLORS, import_extra, line_dash, metric_title, panel_title, require_few_panels
from gpuvec.cli.terminal import printable
from gpuvec.learners.runs.curves import X_TITLES, Panel, XName

DASHES = ("-", "--", ":", "-.")
# One column of panels, so that text is legible where the picture is 400 pixels wide.
WIDTH, PANEL_HEIGHT, LEGEND_LINE_HEIGHT = 4.0, 2.4, 0.16  # inches
DOTS_PER_INCH = 200
LABEL_WIDTH = 52  # characters


def draw_png(panels: Sequence[Panel], x_name: XName) -> bytes:
    """Returns a PNG file of the curves, 800 pixels wide.

    Args:
        panels: the panels, from top to bottom.
        x_name: the horizontal axis.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: there are too many panels.
    """
    file = io.BytesIO()
    draw_figure(panels, x_name).savefig(file, format="png", dpi=DOTS_PER_INCH)
    return file.getvalue()


def draw_figure(panels: Sequence[Panel], x_name: XName) -> Any:
    """Returns the `matplotlib.figure.Figure` of the curves.

    Args:
        panels: the panels, from top to bottom.
        x_name: the horizontal axis.

    Raises:
        MissingExtraError: the package is not installed.
        ValueError: there are too many panels.
    """
    require_few_panels(panels)
    figure_module = import_extra("matplotlib.figure", "plot")
    ticker = import_extra("matplotlib.ticker", "plot")
    labels = [[textwrap.fill(printable(line.name), LABEL_WIDTH) for line in panel.lines] for panel in panels]
    heights = [PANEL_HEIGHT + LEGEND_LINE_HEIGHT * sum(text.count("\n") + 1 for text in texts) for texts in labels]
    figure = figure_module.Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    rows = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, panel, texts in zip(rows, panels, labels, strict=True):
        _draw_panel(axes, panel, texts)
        axes.set_xlabel(X_TITLES[x_name], fontsize=8)
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    return figure


def _draw_panel(axes: Any, panel: Panel, labels: Sequence[str]) -> None:
    handles = []
    for line in panel.lines:
        curve, color = line.curve, COLORS[line.color_index % len(COLORS)]
        marker = "o" if len(curve.x) == 1 else ""
        style = {"color": color, "linestyle": DASHES[line_dash(line.color_index)], "marker": marker}
        handles += axes.plot(curve.x, curve.mean, linewidth=1.5, **style)
        if curve.num_seeds > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    # Names from files are no formulas.
    axes.set_title(panel_title(panel), fontsize=9, parse_math=False)
    axes.set_ylabel(metric_title(panel), fontsize=8, parse_math=False)
    axes.tick_params(labelsize=8)
    axes.grid(True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(
        handles, labels, fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22), borderaxespad=0.0
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
