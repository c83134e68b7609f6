"""Figures of trainings: one description, which is drawn as a PNG file by matplotlib, or as an HTML page by plotly.

Letters: S seeds, N points.
"""

from __future__ import annotations

import html
import importlib
import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuvec.cli.terminal import printable
from gpuvec.errors import MissingExtraError, install_command
from gpuvec.learners.metric_names import ENV_METRICS
from gpuvec.learners.runs.comparison import MIN_SEEDS, RunGroup, mean_and_interval, unique_descriptions
from gpuvec.learners.runs.history import RunHistory

if TYPE_CHECKING:
    from gpuvec.learners.population.results.population_history import PopulationHistory
    from gpuvec.learners.population.search.search_space import SearchParameter, Trials

FloatArray = NDArray[np.float64]
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777")
"""The palette of Okabe and Ito, 2008, which people with any form of colour blindness can distinguish; without yellow, and with
grey in place of black, which a dark page hides."""
MAX_PANELS = 40
MAX_POINTS = 400  # of a curve; neighbouring points of longer ones are averaged
XName = Literal["steps", "seconds"]
X_TITLES: dict[XName, str] = {"steps": "environment steps", "seconds": "seconds of training"}
INTERVAL_OPACITY = 0.2
QUANTILE_BANDS = ((0.05, 0.95, 0.15), (0.25, 0.75, 0.3))  # quantiles at both edges, and the opacity between them
LOGARITHMIC_RATIO = 30.0  # of the largest value to the smallest one, from which an axis is logarithmic
NUM_BINS = 12  # of a hyper-parameter, for the medians

# Of PNG files. One column of panels, so that text is legible where the picture is 400 pixels wide.
PNG_DASHES = ("-", "--", ":", "-.")
PNG_WIDTH, PNG_PANEL_HEIGHT, PNG_LEGEND_LINE_HEIGHT = 4.0, 2.4, 0.16  # inches
DOTS_PER_INCH = 200
LABEL_WIDTH = 52  # characters
COLOR_MAP = "viridis"  # which people with any form of colour blindness can read
LABEL_GAP = 0.03  # between an axis of parallel coordinates and its numbers, of its length

# Of HTML pages.
HTML_DASHES = ("solid", "dash", "dot", "dashdot")
CLOUD_BUTTONS = ["sendChartToCloud", "sendDataToCloud"]  # which would upload the data; the name depends on the version
# Pixels. Legends are below their panels, so that a narrow window shows the curves in its whole width.
PANEL_HEIGHT, TITLE_HEIGHT, AXIS_HEIGHT, LEGEND_LINE_HEIGHT = 300, 50, 55, 24
# From low to high scores, in hues for people with any colour vision. All are legible on white and on dark paper.
COLOR_SCALE = ((0.0, "#0072b2"), (0.5, "#8c8080"), (1.0, "#d55e00"))
NUM_TICKS = 6  # of a logarithmic axis
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


class Band(NamedTuple):
    """An area around a curve."""

    low: FloatArray  # (N,)
    high: FloatArray  # (N,)
    opacity: float
    name: str = ""  # in the legend; "" if it is not there


class Series(NamedTuple):
    """A curve with its bands, or points; its color and its dashes follow from a number."""

    x: FloatArray  # (N,)
    y: FloatArray  # (N,)
    name: str = ""  # in the legend; "" if it is not there
    color_index: int = 0
    bands: tuple[Band, ...] = ()
    is_scatter: bool = False

    @property
    def color(self) -> str:
        """That of the curve and of its bands."""
        return COLORS[self.color_index % len(COLORS)]

    @property
    def dash_index(self) -> int:
        """The number of the dash pattern, 0 for a solid line; it changes where the colors repeat."""
        return self.color_index // len(COLORS) % 4


class Chart(NamedTuple):
    """A panel of a figure with two axes. Texts may be from files."""

    title: str
    x_title: str
    y_title: str
    series: list[Series]
    is_logarithmic: bool = False  # the axis x
    has_units: bool = True  # whether numbers of the axis x end with k and M
    has_legend_inside: bool = False


class Figure(NamedTuple):
    """The panels of a figure, from top to bottom: charts, and the trials of a search as parallel coordinates."""

    name: str
    title: str
    panels: Sequence[Chart | Trials]


def curves_figure(groups: Sequence[RunGroup], x_name: XName) -> tuple[Figure, list[str]]:
    """Returns learning curves: a panel for each environment and each name of the metric, with a curve for each group of runs.

    Args:
        groups: the groups.
        x_name: the horizontal axis.

    Returns:
        The figure, which may have no panel, and messages about runs that end early and about groups without a curve.
    """
    charts: list[Chart] = []
    messages: list[str] = []
    for env in dict.fromkeys(group.env for group in groups):
        in_env = [group for group in groups if group.env == env]
        descriptions = unique_descriptions(in_env)
        for metric_name in dict.fromkeys(name for group in in_env for name in group.metric_names):
            series = []
            for color_index, (group, description) in enumerate(zip(in_env, descriptions, strict=True)):
                if metric_name not in group.metric_names:
                    continue
                curve, notes = mean_curve(group.runs, metric_name, x_name)
                messages += notes
                if curve is not None:
                    series.append(curve._replace(name=f"{description} ({curve.name})", color_index=color_index))
            if series:
                role, _, name = metric_name.rpartition("/")
                title = env if role in ("", ENV_METRICS) else f"{env}, {role}"
                charts.append(Chart(title, X_TITLES[x_name], name.replace("_", " "), series))
    title = ", ".join(dict.fromkeys(chart.title for chart in charts))
    return Figure("learning-curves", f"{title}: learning curves", charts), messages


def mean_curve(runs: Sequence[RunHistory], metric_name: str, x_name: XName) -> tuple[Series | None, list[str]]:
    """Returns the mean curve of runs with its interval, over the range of x that all of them have.

    Between the points of a run its values are interpolated linearly.

    Args:
        runs: the runs of one group.
        metric_name: the name of a column.
        x_name: the name of the column of the horizontal axis.

    Returns:
        The curve, whose name says how many seeds it has and what its interval is, None if no run has a number or they have no
        range in common; and messages.
    """
    points, messages = [], []
    for run in runs:
        x, y = run.columns[x_name], run.columns.get(metric_name, np.full(len(run.columns[x_name]), np.nan))
        is_point = np.isfinite(x) & np.isfinite(y)
        x, y = x[is_point], y[is_point]
        if len(x) and (np.diff(x) > 0.0).all():
            points.append((run, x, y))
        else:
            reason = f"{x_name} that do not ascend" if len(x) else "no number yet"
            messages.append(f"{run.path}: {metric_name} has {reason}. It is left out.")
    if not points:
        return None, messages
    begin, end = max(x[0] for _, x, _ in points), min(x[-1] for _, x, _ in points)
    if begin > end:
        return None, [*messages, f"the runs beside {points[0][0].path} have no {x_name} in common, so they have no curve."]
    longest = max(x[-1] for _, x, _ in points)
    if end < 0.95 * longest:
        shortest = next(run for run, x, _ in points if x[-1] == end)
        messages.append(f"{shortest.path} ends at {end:,.0f} of {longest:,.0f} {x_name}, and so does the curve of its group.")
    grid = np.unique(np.concatenate([x for _, x, _ in points]))
    grid = grid[(grid >= begin) & (grid <= end)]
    rows = np.stack([grid, *(np.interp(grid, x, y) for _, x, y in points)])
    size = -(-len(grid) // MAX_POINTS)
    if size > 1:  # the means of equally many neighbours
        starts = np.arange(0, len(grid), size)
        rows = np.add.reduceat(rows, starts, axis=1) / np.diff([*starts, len(grid)])
    mean, low, high = mean_and_interval(rows[1:])
    if len(points) == 1:
        return Series(rows[0], mean, "1 seed"), messages
    name = f"{len(points)} seeds, " + ("95 % interval" if len(points) >= MIN_SEEDS else "lowest to highest")
    return Series(rows[0], mean, name, bands=(Band(low, high, INTERVAL_OPACITY),)), messages


def population_figure(history: PopulationHistory, title: str, metric_name: str = "return") -> Figure:
    """Returns quantiles of a metric over the training, and the final return by each hyper-parameter in which agents differ.

    Args:
        history: the numbers of all agents.
        title: the title of the figure.
        metric_name: the metric whose quantiles are drawn.

    Raises:
        ValueError: there is no such metric.
    """
    if metric_name not in history.metrics:
        raise ValueError(f"the population has no metric {metric_name!r}; it has {', '.join(history.metrics)}.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN")  # iterations in which no agent has a number
        levels = [level for low, high, _ in QUANTILE_BANDS for level in (low, high)]
        edges = np.nanquantile(history.metrics[metric_name].astype(np.float64), [*levels, 0.5], axis=1)
    bands = tuple(
        Band(edges[2 * k], edges[2 * k + 1], opacity, f"{low:.0%} to {high:.0%} of agents")
        for k, (low, high, opacity) in enumerate(QUANTILE_BANDS)
    )
    median = Series(history.steps.astype(np.float64), edges[-1], "median", bands=bands)
    x_title = "environment steps of an agent"
    charts = [Chart(title, x_title, metric_name.replace("_", " "), [median], has_legend_inside=True)]
    for name, column in history.hyperparameters.items():
        if len(np.unique(column)) > 1:
            is_logarithmic = bool(column.min() > 0 and column.max() / column.min() >= LOGARITHMIC_RATIO)
            charts.append(_hyperparameter_chart(name, column, history.final_returns(), is_logarithmic))
    return Figure("population", title, charts)


def trials_figure(trials: Trials) -> Figure:
    """Returns the trials of a search as lines from setting to setting, and the scores by each setting.

    Args:
        trials: the trials; those without a score are left out.
    """
    charts = [_hyperparameter_chart(p.name, trials.values[p.name], trials.scores, p.scale == "log") for p in trials.parameters]
    return Figure("trials", f"{trials.env}: trials", [trials, *charts])


def _hyperparameter_chart(name: str, column: FloatArray, returns: FloatArray, is_logarithmic: bool) -> Chart:
    """The final returns, (N,), by a hyper-parameter, (N,), with medians; returns that are nan are left out."""
    is_finite = np.isfinite(returns)
    x, y = column[is_finite], returns[is_finite]
    series = [Series(x, y, is_scatter=True)]
    if len(x):
        edges = np.quantile(x, np.linspace(0, 1, NUM_BINS + 1))
        bin_numbers = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, NUM_BINS - 1)
        bins = [bin_numbers == k for k in range(NUM_BINS) if (bin_numbers == k).any()]
        medians = [np.array([np.median(values[each]) for each in bins]) for values in (x, y)]
        series.append(Series(medians[0], medians[1], f"median of {NUM_BINS} equally large parts", color_index=1))
    return Chart("", name, "final return", series, is_logarithmic, has_units=False, has_legend_inside=True)


def import_extra(module: str, extra: str) -> Any:
    """Imports and returns a module of an optional package.

    Args:
        module: its dotted name.
        extra: the extra of gpuvec that installs the package.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(f"this picture needs {package} ({error}): {install_command(extra)}") from error


def _require_few_panels(figure: Figure) -> None:
    if len(figure.panels) > MAX_PANELS:
        raise ValueError(f"the curves have {len(figure.panels)} panels, one for each environment and role: give fewer runs.")


def to_png(figure: Figure) -> bytes:
    """Returns a PNG file of a figure, 800 pixels wide.

    Args:
        figure: the figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: there are too many panels.
    """
    file = io.BytesIO()
    draw_by_matplotlib(figure).savefig(file, format="png", dpi=DOTS_PER_INCH)
    return file.getvalue()


def draw_by_matplotlib(figure: Figure) -> Any:
    """Returns the `matplotlib.figure.Figure` of a figure.

    Args:
        figure: the figure.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ValueError: there are too many panels.
    """
    _require_few_panels(figure)
    figure_module, ticker = import_extra("matplotlib.figure", "plot"), import_extra("matplotlib.ticker", "plot")
    heights = []
    for panel in figure.panels:
        height = PNG_PANEL_HEIGHT
        if isinstance(panel, Chart) and not panel.has_legend_inside:
            height += PNG_LEGEND_LINE_HEIGHT * sum(_label(each.name).count("\n") + 1 for each in panel.series)
        heights.append(height)
    picture = figure_module.Figure(figsize=(PNG_WIDTH, sum(heights)), layout="constrained")
    rows = picture.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, panel in zip(rows, figure.panels, strict=True):
        if isinstance(panel, Chart):
            _draw_chart(axes, panel)
            if panel.has_units:
                axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        else:
            _draw_parallel(axes, panel)
    return picture


def _label(name: str) -> str:
    """A name in the legend of a PNG file, of several lines if it is long."""
    return textwrap.fill(printable(name), LABEL_WIDTH)


def _draw_chart(axes: Any, chart: Chart) -> None:
    handles, labels = [], []
    for series in chart.series:
        color = series.color
        for band in series.bands:
            area = axes.fill_between(series.x, band.low, band.high, color=color, alpha=band.opacity, linewidth=0)
            if band.name:
                handles.append(area)
                labels.append(band.name)
        if series.is_scatter:
            axes.scatter(series.x, series.y, s=4, color=color, alpha=0.4, linewidths=0)
            continue
        marker = "o" if len(series.x) == 1 else ""
        handles += axes.plot(
            series.x, series.y, linewidth=1.5, color=color, linestyle=PNG_DASHES[series.dash_index], marker=marker
        )
        labels.append(_label(series.name))
    if chart.is_logarithmic:
        axes.set_xscale("log")
    # Names from files are no formulas.
    axes.set_title(printable(chart.title), fontsize=9, parse_math=False)
    axes.set_xlabel(printable(chart.x_title), fontsize=8, parse_math=False)
    axes.set_ylabel(printable(chart.y_title), fontsize=8, parse_math=False)
    axes.tick_params(labelsize=8)
    axes.grid(True, linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if handles:
        below_axes = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.22), "borderaxespad": 0.0}
        legend = axes.legend(handles, labels, fontsize=7, frameon=False, **({} if chart.has_legend_inside else below_axes))
        for text in legend.get_texts():
            text.set_parse_math(False)


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
    axes.set_title(printable(trials.env), fontsize=9, parse_math=False)


def to_html(figure: Figure) -> str:
    """Returns an HTML page of a figure, which contains plotly.js and sends nothing. It is dark where the reader prefers that.

    Of the trials of a search it has the parallel coordinates, whose axes select trials.

    Args:
        figure: the figure.

    Raises:
        MissingExtraError: plotly is not installed.
        ValueError: there are too many panels.
    """
    _require_few_panels(figure)
    first, charts = figure.panels[0], [panel for panel in figure.panels if isinstance(panel, Chart)]
    picture = _draw_charts_by_plotly(charts) if isinstance(first, Chart) else draw_trials_by_plotly(first)
    config = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": CLOUD_BUTTONS}
    page: str = picture.to_html(include_plotlyjs=True, full_html=True, config=config, div_id=figure.name)
    title_element = f"<title>{_escaped(figure.title)}</title>"
    script = DARK_MODE.replace("NAME", figure.name)
    head, _, rest = page.partition("<head>")
    body, _, end = rest.rpartition("</body>")
    return f"{head}<head>{HEAD}{title_element}{body}<script>{script}</script></body>{end}"


def _escaped(text: str) -> str:
    """A text in a page. Plotly interprets tags in texts, and names from files are plain text."""
    return html.escape(printable(text))


def _draw_charts_by_plotly(charts: Sequence[Chart]) -> Any:
    """Returns the `plotly.graph_objects.Figure` of charts."""
    graph_objects, subplots = (import_extra(f"plotly.{name}", "plotly") for name in ("graph_objects", "subplots"))
    legend_height = AXIS_HEIGHT + LEGEND_LINE_HEIGHT * max(len(chart.series) for chart in charts)
    inner_height = len(charts) * PANEL_HEIGHT + (len(charts) - 1) * (legend_height + TITLE_HEIGHT)
    spacing = (legend_height + TITLE_HEIGHT) / inner_height
    titles = [_escaped(chart.title) for chart in charts]
    picture = subplots.make_subplots(rows=len(charts), cols=1, subplot_titles=titles, vertical_spacing=spacing)
    for row, chart in enumerate(charts, 1):
        legend = f"legend{row}" if row > 1 else "legend"
        for series in chart.series:
            group = f"{legend} {series.color_index}"
            shared = {"x": series.x.tolist(), "legendgroup": group, "legend": legend}
            traces = []
            for band in series.bands:
                edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip", **shared}
                fill = {"fill": "tonexty", "fillcolor": f"rgba{(*bytes.fromhex(series.color[1:]), band.opacity)}"}
                traces.append(graph_objects.Scatter(y=band.low.tolist(), **edge))
                traces.append(graph_objects.Scatter(y=band.high.tolist(), **edge, **fill))
            line = {"color": series.color, "dash": HTML_DASHES[series.dash_index], "width": 2}
            traces.append(graph_objects.Scatter(
                y=series.y.tolist(), name=_escaped(series.name), mode="lines" if len(series.x) > 1 else "markers",
                line=line, marker={"color": series.color}, **shared,
            ))  # fmt: skip
            for trace in traces:
                picture.add_trace(trace, row=row, col=1)
        picture.update_xaxes(title_text=_escaped(chart.x_title), row=row, col=1)
        picture.update_yaxes(title_text=_escaped(chart.y_title), row=row, col=1)
        bottom = picture.get_subplot(row, 1).yaxis.domain[0]
        picture.update_layout({legend: {"x": 0.0, "y": bottom - AXIS_HEIGHT / inner_height, "yanchor": "top"}})
    margin = {"t": TITLE_HEIGHT, "b": legend_height, "l": 60, "r": 20}
    picture.update_layout(template="plotly_white", height=inner_height + TITLE_HEIGHT + legend_height, margin=margin)
    return picture


def draw_trials_by_plotly(trials: Trials) -> Any:
    """Returns the `plotly.graph_objects.Figure` of the trials of a search, those without a score left out.

    Args:
        trials: the trials.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    graph_objects = import_extra("plotly.graph_objects", "plotly")

    def dimension(parameter: SearchParameter) -> dict[str, Any]:
        """The axis of a setting; plotly has none that is logarithmic."""
        low, high, values = parameter.low, parameter.high, trials.values[parameter.name][is_scored]
        title = _escaped(parameter.name)
        if parameter.scale == "linear":
            return {"label": title, "values": values.tolist(), "range": [low, high]}
        ticks = np.linspace(math.log10(low), math.log10(high), NUM_TICKS)
        axis = {"label": title, "values": np.log10(values).tolist(), "range": [ticks[0], ticks[-1]]}
        return {**axis, "tickvals": ticks.tolist(), "ticktext": [f"{10**tick:.2g}" for tick in ticks]}

    is_scored = np.isfinite(trials.scores)
    scores = trials.scores[is_scored].tolist()
    dimensions = [*map(dimension, trials.parameters), {"label": "score", "values": scores}]
    line = {"color": scores, "colorscale": [list(stop) for stop in COLOR_SCALE], "showscale": True}
    picture = graph_objects.Figure(graph_objects.Parcoords(line=line, dimensions=dimensions, labelangle=-25))
    picture.update_layout(title={"text": _escaped(trials.env)}, margin={"t": 110})
    return picture
