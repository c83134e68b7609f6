"""Learning curves as one HTML file that needs no network, by plotly."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from gpuvec.cli.plots import COLORS, import_extra, line_dash, metric_title, panel_title, require_few_panels
from gpuvec.cli.terminal import printable
from gpuvec.learners.runs.curves import X_TITLES, Line, Panel, XName

CLOUD_BUTTONS = ["sendChartToCloud", "sendDataToCloud"]  # which would upload the data; the name depends on the version
DASHES = ("solid", "dash", "dot", "dashdot")
HEAD = (
    '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
    "<style>@media (prefers-color-scheme: dark) { body { background: #121419 } "
    ".parcoords .axis .domain { stroke: #9ba1ad !important } }</style>"
)
# Colours of paper, texts and lines; axes have names such as xaxis2.
DARK_MODE = """
(() => {
  const query = matchMedia("(prefers-color-scheme: dark)"), figure = document.getElementById("NAME");
  const adapt = () => {
    const [paper, text, line] = query.matches ? ["#121419", "#e7e9ed", "#3a3f4a"] : ["#ffffff", "#2a3f5f", "#ebf0f8"];
    const changes = { paper_bgcolor: paper, plot_bgcolor: paper, "font.color": text };
    for (const name of Object.keys(figure.layout).filter((key) => /^[xy]axis\\d*$/.test(key))) {
      Object.assign(changes, { [`${name}.gridcolor`]: line, [`${name}.linecolor`]: line, [`${name}.zerolinecolor`]: line });
    }
    return Plotly.relayout(figure, changes);
  };
  query.addEventListener("change", adapt);
  adapt();
})();
"""
# Pixels. Legends are below their panels, so that a narrow window shows the curves in its whole width.
PANEL_HEIGHT, TITLE_HEIGHT, AXIS_HEIGHT, LEGEND_LINE_HEIGHT = 300, 50, 55, 24


def draw_html(panels: Sequence[Panel], x_name: XName) -> str:
    """Returns an HTML page of the curves, which contains plotly.js.

    Args:
        panels: the panels, from top to bottom.
        x_name: the horizontal axis.

    Raises:
        MissingExtraError: plotly is not installed.
        ValueError: there are too many panels.
    """
    title = ", ".join(dict.fromkeys(panel_title(panel) for panel in panels))
    return figure_page(draw_figure(panels, x_name), "learning-curves", f"{title}: learning curves")


def figure_page(figure: Any, name: str, title: str) -> str:
    """Returns an HTML page of a figure, which contains plotly.js and sends nothing. It is dark where the reader prefers that.

    Args:
        figure: the `plotly.graph_objects.Figure`.
        name: the id of its element.
        title: of the page.
    """
    config = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": CLOUD_BUTTONS}
    page: str = figure.to_html(include_plotlyjs=True, full_html=True, config=config, div_id=name)
    title_element = f"<title>{html.escape(printable(title))}</title>"
    script = DARK_MODE.replace("NAME", name)
    head, _, rest = page.partition("<head>")
    body, _, end = rest.rpartition("</body>")
    return f"{head}<head>{HEAD}{title_element}{body}<script>{script}</script></body>{end}"


def draw_figure(panels: Sequence[Panel], x_name: XName) -> Any:
    """Returns the `plotly.graph_objects.Figure` of the curves.

    Args:
        panels: the panels, from top to bottom.
        x_name: the horizontal axis.

    Raises:
        MissingExtraError: the package is not installed.
        ValueError: there are too many panels.
    """
    require_few_panels(panels)
    graph_objects = import_extra("plotly.graph_objects", "plotly")
    subplots = import_extra("plotly.subplots", "plotly")
    # Plotly interprets tags in texts, and names from files are plain text.
    titles = [html.escape(panel_title(panel)) for panel in panels]
    legend_height = AXIS_HEIGHT + LEGEND_LINE_HEIGHT * max(len(panel.lines) for panel in panels)
    inner_height = len(panels) * PANEL_HEIGHT + (len(panels) - 1) * (legend_height + TITLE_HEIGHT)
    spacing = (legend_height + TITLE_HEIGHT) / inner_height
    figure = subplots.make_subplots(rows=len(panels), cols=1, subplot_titles=titles, vertical_spacing=spacing)
    for row, panel in enumerate(panels, 1):
        legend = f"legend{row}" if row > 1 else "legend"
        for line in panel.lines:
            for trace in _traces(graph_objects, line, legend):
                figure.add_trace(trace, row=row, col=1)
        figure.update_xaxes(title_text=X_TITLES[x_name], row=row, col=1)
        figure.update_yaxes(title_text=html.escape(metric_title(panel)), row=row, col=1)
        bottom = figure.get_subplot(row, 1).yaxis.domain[0]
        place = {"x": 0.0, "y": bottom - AXIS_HEIGHT / inner_height, "yanchor": "top"}
        figure.update_layout({legend: place})
    margin = {"t": TITLE_HEIGHT, "b": legend_height, "l": 60, "r": 20}
    figure.update_layout(template="plotly_white", height=inner_height + TITLE_HEIGHT + legend_height, margin=margin)
    return figure


def _traces(graph_objects: Any, line: Line, legend: str) -> list[Any]:
    """The traces of a line: its interval as an area, if there is one, and the mean."""
    curve, color = line.curve, COLORS[line.color_index % len(COLORS)]
    shared = {"x": curve.x.tolist(), "legendgroup": f"{legend} {line.color_index}", "legend": legend}
    bounds = []
    if curve.num_seeds > 1:
        edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", **shared}
        fill = {"fill": "tonexty", "fillcolor": f"rgba{(*bytes.fromhex(color[1:]), 0.2)}"}
        bounds = [
            graph_objects.Scatter(y=curve.low.tolist(), **edge),
            graph_objects.Scatter(y=curve.high.tolist(), **edge, **fill),
        ]
    mean = graph_objects.Scatter(
        y=curve.mean.tolist(), name=html.escape(printable(line.name)), mode="lines" if len(curve.x) > 1 else "markers",
        line={"color": color, "dash": DASHES[line_dash(line.color_index)], "width": 2}, marker={"color": color}, **shared,
    )  # fmt: skip
    return [*bounds, mean]
