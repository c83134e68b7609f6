"""Figures: the curves, points and axes of pictures, pages and terminals, and text from other people's files."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from tests.support.run_folders import write_compared_runs, write_run

from gpuvec.cli import figures, main
from gpuvec.cli.figures import (
    COLOR_SCALE,
    COLORS,
    MAX_PANELS,
    Chart,
    Figure,
    Series,
    curves_figure,
    draw_by_matplotlib,
    draw_trials_by_plotly,
    mean_curve,
    to_html,
    to_png,
    trials_figure,
)
from gpuvec.errors import MissingExtraError
from gpuvec.learners.population.search.search_space import SearchParameter, Trials
from gpuvec.learners.runs.archives import to_npz
from gpuvec.learners.runs.comparison import group_runs
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import RunHistory, read_histories, read_history

HOSTILE = "x/<b>$\\frac$</script>\x1b[31m-v0"
NAN = float("nan")
RATE, GRAVITY = SearchParameter("learning_rate", "log", 1e-4, 1e-2), SearchParameter("params.gravity", "linear", 5.0, 15.0)
VALUES = {"learning_rate": np.array([1e-4, 1e-3, 1e-2, 1e-3]), "params.gravity": np.array([10.0, 15.0, 5.0, 7.0])}
TRIALS = Trials("gpuvec/X-v0", (RATE, GRAVITY), VALUES, np.array([30.0, 10.0, 20.0, np.nan]), np.zeros(4, np.int64))
needs_matplotlib, needs_plotly = (
    pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"extra `{extra}`")
    for package, extra in (("matplotlib", "plot"), ("plotly", "plotly"))
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_compared_runs(tmp_path_factory.mktemp("runs"))


def read(path: Path, metric: str = "return") -> RunHistory:
    with RunFolder(path) as run:
        return read_history(run, metric)


def curves_of(folder: Path) -> Figure:
    return curves_figure(group_runs(read_histories([folder], "return")[0])[0], "steps")[0]


def one_chart(title: str = "a/B-v0", label: str = "ppo (1 seed)", num_points: int = 2, color_index: int = 0) -> Figure:
    x = np.arange(1.0, 1.0 + num_points)
    return Figure(
        "learning-curves", f"{title}: learning curves", [Chart(title, "steps", "return", [Series(x, x, label, color_index)])]
    )


class TestCurves:
    def test_the_mean_and_the_interval_over_seeds(self, tmp_path: Path) -> None:
        runs = [read(write_run(tmp_path, seed, {"return": [seed, 10.0 * seed]})) for seed in (1, 2, 3, 4, 5)]
        curve, messages = mean_curve(runs, "return", "steps")
        assert messages == []
        assert curve is not None
        assert curve.x.tolist() == [100.0, 200.0]
        assert curve.y.tolist() == [3.0, 30.0]
        assert curve.bands[0].high - curve.y == pytest.approx([1.9632, 19.632], abs=1e-3)
        assert curve.name == "5 seeds, 95 % interval"

    def test_gaps_are_interpolated_and_the_range_is_the_common_one(self, tmp_path: Path) -> None:
        first = read(write_run(tmp_path, 1, {"return": [NAN, 2.0, NAN, 4.0, 5.0]}))
        second = read(write_run(tmp_path, 2, {"return": [1.0, 2.0, 3.0, 4.0, NAN]}))
        curve, messages = mean_curve([first, second], "return", "seconds")
        assert curve is not None
        assert curve.x.tolist() == [11.0, 11.5, 12.0]
        assert curve.y.tolist() == [2.0, 3.0, 4.0]
        assert messages == []
        _, messages = mean_curve([first, second], "return", "steps")
        assert messages == [f"{second.path} ends at 400 of 500 steps, and so does the curve of its group."]

    def test_runs_without_numbers_are_left_out(self, tmp_path: Path) -> None:
        good, bad = (read(write_run(tmp_path, seed, {"return": [value]})) for seed, value in ((1, 5.0), (2, NAN)))
        curve, messages = mean_curve([good, bad], "return", "steps")
        assert curve is not None
        assert (curve.y.tolist(), curve.name, curve.bands) == ([5.0], "1 seed", ())
        assert messages == [f"{bad.path}: return has no number yet. It is left out."]
        assert mean_curve([bad], "return", "steps")[0] is None

    def test_long_curves_are_averaged(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(figures, "MAX_POINTS", 3)
        run = read(write_run(tmp_path, 1, {"return": [1.0, 2.0, 3.0, 4.0, 6.0]}))
        curve, _ = mean_curve([run], "return", "steps")
        assert curve is not None
        assert curve.y.tolist() == [1.5, 3.5, 6.0]
        assert curve.x.tolist() == [150.0, 350.0, 500.0]

    def test_a_panel_for_each_environment_and_role(self, tmp_path: Path) -> None:
        for rate in (0.1, 0.2):
            write_run(tmp_path, 1, {"return": [1.0]}, learning_rate=rate)
        write_run(tmp_path, 1, {"wolves/return": [1.0], "sheep/return": [2.0]}, env="gpuvec/Predators-v0")
        charts = curves_of(tmp_path).panels
        assert [(chart.title, chart.y_title, [series.name for series in chart.series]) for chart in charts] == [
            ("gpuvec/CartPole-v1", "return", ["ppo learning_rate=0.1 (1 seed)", "ppo learning_rate=0.2 (1 seed)"]),
            ("gpuvec/Predators-v0, wolves", "return", ["ppo (1 seed)"]),
            ("gpuvec/Predators-v0, sheep", "return", ["ppo (1 seed)"]),
        ]


@needs_matplotlib
class TestPicture:
    def test_has_the_curves_and_the_intervals(self, runs: Path) -> None:
        first, wolves, sheep = draw_by_matplotlib(curves_of(runs)).axes
        assert [axes.get_title() for axes in (first, wolves, sheep)] == [
            "gpuvec/CartPole-v1", "gpuvec/Predators-v0, wolves", "gpuvec/Predators-v0, sheep"
        ]  # fmt: skip
        assert [line.get_xydata().tolist() for line in first.lines] == [
            [[100.0, 2.0], [200.0, 960.0]],
            [[100.0, 5.0], [200.0, 6.0]],
        ]
        assert [line.get_color() for line in first.lines] == list(COLORS[:2])
        (band,) = first.collections
        # The t interval of 480, 960 and 1440: 4.3027 * 480 / sqrt(3) on both sides.
        assert band.get_paths()[0].get_extents().ymax == pytest.approx(960.0 + 1192.4, abs=0.1)
        texts = [text.get_text() for text in first.get_legend().get_texts()]
        assert texts == ["ppo learning_rate=0.1 (3 seeds, 95 % interval)", "ppo learning_rate=0.2 (1 seed)"]
        assert (first.get_xlabel(), first.get_ylabel()) == ("environment steps", "return")
        assert sheep.lines[0].get_ydata().tolist() == [3.0, 4.0]

    def test_the_command_writes_a_png(self, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from PIL import Image

        png = tmp_path / "curves.png"
        assert main(["plot", str(runs), "--png", str(png), "--x", "seconds"]) == 0
        assert capsys.readouterr() == (f"wrote      {png}: 4 curves of 5 runs\n", "")
        with Image.open(png) as image:
            assert image.format == "PNG"
            assert image.width == 800
            assert len(np.unique(np.asarray(image.convert("L")))) > 10
        assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]

    def test_names_from_files_are_no_formulas(self) -> None:
        figure = draw_by_matplotlib(one_chart(HOSTILE, HOSTILE))
        figure.savefig(io.BytesIO(), format="png")
        assert "\x1b" not in figure.axes[0].get_title()

    def test_a_single_point_is_visible_and_many_groups_differ(self) -> None:
        (axes,) = draw_by_matplotlib(one_chart(num_points=1)).axes
        assert axes.lines[0].get_marker() == "o"
        styles = set()
        for k in range(2 * len(COLORS)):
            (line,) = draw_by_matplotlib(one_chart(color_index=k)).axes[0].lines
            styles.add((line.get_color(), line.get_linestyle()))
        assert len(styles) == 2 * len(COLORS)

    def test_too_many_panels_are_refused(self) -> None:
        figure = one_chart()
        for draw in (to_png, to_html):
            with pytest.raises(ValueError, match=f"have {MAX_PANELS + 1} panels"):
                draw(figure._replace(panels=[*figure.panels] * (MAX_PANELS + 1)))


@needs_plotly
class TestPage:
    def test_contains_the_curves_and_plotly(self, runs: Path, tmp_path: Path) -> None:
        html = tmp_path / "curves.html"
        assert main(["plot", str(runs), "--html", str(html)]) == 0
        assert [path.name for path in tmp_path.iterdir()] == ["curves.html"]
        page = html.read_text()
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)  # it loads nothing
        assert '"modeBarButtonsToRemove": ["sendChartToCloud", "sendDataToCloud"]' in page  # and sends nothing
        traces = traces_of(page)
        named = {trace["name"]: trace["y"] for trace in traces if "name" in trace and trace["yaxis"] == "y"}
        assert named == {
            "ppo learning_rate=0.1 (3 seeds, 95 % interval)": [2.0, 960.0],
            "ppo learning_rate=0.2 (1 seed)": [5.0, 6.0],
        }
        low, high = (trace for trace in traces if "name" not in trace)
        assert (low["y"][1], high["y"][1]) == pytest.approx((960.0 - 1192.4, 960.0 + 1192.4), abs=0.1)
        assert high["fillcolor"] == "rgba(0, 114, 178, 0.2)"
        assert [trace["y"] for trace in traces if trace["yaxis"] != "y"] == [[1.0, 2.0], [3.0, 4.0]]

    def test_has_a_title_a_viewport_and_a_dark_mode(self) -> None:
        page = to_html(one_chart(HOSTILE, HOSTILE))
        head = page[: page.index("</head>")]
        (title,) = re.findall(r"<title>(.*?)</title>", head)
        assert title.endswith(": learning curves")
        assert "&lt;b&gt;" in title
        assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in head
        assert "@media (prefers-color-scheme: dark)" in head
        assert 'document.getElementById("learning-curves")' in page[page.rindex("<script>") :]

    def test_curves_are_legible_on_white_and_on_dark_paper(self) -> None:
        assert luminance("#ffffff") == 1.0
        for color in COLORS:
            assert contrast(color, "#121419") > 3.0
            assert contrast(color, "#ffffff") > 2.0

    def test_trials_are_legible_on_white_and_on_dark_paper(self) -> None:
        stops = np.array([[int(color[k : k + 2], 16) for k in (1, 3, 5)] for _, color in COLOR_SCALE])
        for share in np.linspace(0.0, 1.0, 21):
            mixed = [round(np.interp(share, [place for place, _ in COLOR_SCALE], channel)) for channel in stops.T]
            color = f"#{bytes(mixed).hex()}"
            assert min(contrast(color, "#121419"), contrast(color, "#ffffff")) > 3.0

    def test_names_from_files_are_plain_text(self) -> None:
        page = to_html(one_chart(HOSTILE, HOSTILE))
        assert page.count("</script>") == to_html(one_chart()).count("</script>")
        (trace,) = traces_of(page)
        assert trace["name"].startswith("x/&lt;b&gt;$")


def luminance(color: str) -> float:
    """Returns the relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.array([*bytes.fromhex(color[1:])]) / 255]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(first: str, second: str) -> float:
    """Returns the contrast ratio of WCAG 2, from 1 to 21."""
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def traces_of(page: str) -> list[dict[str, Any]]:
    """Returns the traces in the last call of Plotly.newPlot in an HTML page."""
    start = page.index("[", page.rindex("Plotly.newPlot("))
    traces: list[dict[str, Any]] = json.JSONDecoder().raw_decode(page[start:])[0]
    return traces


def write_sweep(path: Path, record: Any, arrays: dict[str, Any]) -> Path:
    """Writes the folder of a search, and returns its path."""
    path.mkdir()
    (path / "sweep.json").write_text(json.dumps(record))
    (path / "trials.npz").write_bytes(to_npz(arrays))
    return path


@needs_matplotlib
def test_each_trial_is_a_line_from_setting_to_setting_and_to_its_score() -> None:
    figure = draw_by_matplotlib(trials_figure(TRIALS))
    (lines,) = figure.axes[0].collections[:1]
    heights = [[y for _, y in segment.vertices] for segment in lines.get_paths()]
    # The one without a score is left out, and the best one is on top.
    np.testing.assert_allclose(heights, [[0.5, 1.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 1.0]])
    assert lines.get_array().tolist() == [10.0, 20.0, 30.0]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["learning_rate", "params.gravity", "score"]
    assert [axes.get_xscale() for axes in figure.axes[1:]] == ["log", "linear"]


@needs_plotly
def test_a_page_has_logarithmic_axes() -> None:
    (trace,) = draw_trials_by_plotly(TRIALS).data
    rate, gravity, score = trace.dimensions
    np.testing.assert_allclose(rate["values"], [-4.0, -3.0, -2.0])
    assert rate.ticktext[0] == "0.0001"
    assert rate.ticktext[-1] == "0.01"
    assert list(gravity["values"]) == [10.0, 15.0, 5.0]
    assert list(score["values"]) == [30.0, 10.0, 20.0] == list(trace.line.color)


@needs_matplotlib
@needs_plotly
def test_plot_draws_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"base": {"env": "a/<b>-v0"}, "parameters": [list(RATE), list(GRAVITY)]}
    path = write_sweep(tmp_path / "sweep", record, {**VALUES, "score": TRIALS.scores, "part": TRIALS.parts})
    png, page = tmp_path / "trials.png", tmp_path / "trials.html"
    assert main(["plot", str(path), "--png", str(png), "--html", str(page)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page.read_text())
    assert "a/<b>-v0" not in page.read_text()
    assert "4 trials" in capsys.readouterr().out
    assert main(["plot", str(path), str(path), "--png", str(tmp_path / "b.png")]) == 1
    assert "a search is drawn alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "arrays", "message"),
    [
        ([["gamma", "log", -1.0, 1.0]], {}, "parameters must have names, scales and ranges"),
        ([["gamma", "linear", None, 1.0]], {}, "parameters must have names, scales and ranges"),
        ("all", {}, "parameters must be a list of settings"),
        ([list(RATE)], {"score": TRIALS.scores, "part": TRIALS.parts}, "it has no array 'learning_rate'"),
        (
            [list(RATE)],
            {"score": TRIALS.scores[:2], "part": TRIALS.parts, **VALUES},
            "'score' must be float64 of the shape (4,)",
        ),
    ],
)
def test_a_damaged_search_is_refused(
    parameters: Any, arrays: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sweep(tmp_path / "sweep", {"base": {}, "parameters": parameters}, arrays)
    assert main(["plot", str(path), "--png", str(tmp_path / "trials.png")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("option", "package", "extra"), [("--png", "matplotlib", "plot"), ("--html", "plotly", "plotly")])
def test_a_missing_package_names_its_extra(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, package: str, extra: str
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf'needs {package} .*pip install .*\[{extra}\]"'):
        (to_png if option == "--png" else to_html)(one_chart())
    assert main(["plot", str(runs), option, str(tmp_path / "file")]) == 1
    assert list(tmp_path.iterdir()) == []
