"""`gpuvec plot` and `gpuvec compare`: the data in pictures and tables, files that exist, and text from other people's files."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("matplotlib", reason="extra `plot`")
pytest.importorskip("plotly", reason="extra `plotly`")

from tests.support.run_folders import write_run

from gpuvec.cli import curves_html, curves_png, main, output_file
from gpuvec.cli.compare_command import csv_text
from gpuvec.cli.plots import COLORS, MAX_PANELS
from gpuvec.cli.trials_html import COLOR_SCALE
from gpuvec.errors import MissingExtraError
from gpuvec.learners.histories import read_histories
from gpuvec.learners.runs.comparison import Comparison, reward_threshold
from gpuvec.learners.runs.curves import Line, MeanCurve, Panel, make_panels
from gpuvec.learners.runs.groups import group_runs
from gpuvec.learners.runs.seed_statistics import Estimate

HOSTILE = "x/<b>$\\frac$</script>\x1b[31m-v0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of CartPole with two learning rates, of three seeds and of one, and one run with two roles."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        columns = {"return": [float(seed), 480.0 * seed], "eval_return": [math.nan, 480.0 * seed]}
        write_run(folder, seed, columns, evaluated=100.0 * seed, learning_rate=0.1, evaluate_params={})
    write_run(folder, 1, {"return": [5.0, 6.0], "eval_return": [5.0, 6.0]}, learning_rate=0.2, evaluate_params={})
    write_run(folder, 1, {"wolves/return": [1.0, 2.0], "sheep/return": [3.0, 4.0]}, env="gpuvec/Predators-v0")
    return folder


@pytest.fixture(scope="module")
def panels(runs: Path) -> list[Panel]:
    return make_panels(group_runs(read_histories([runs], "return")[0])[0], "steps")[0]


def one_panel(env: str = "a/B-v0", label: str = "ppo (1 seed)", num_points: int = 2, color_index: int = 0) -> Panel:
    x = np.arange(1.0, 1.0 + num_points)
    return Panel(env, "return", [Line(label, color_index, MeanCurve(x, x, x, x, 1))])


class TestPicture:
    def test_has_the_curves_and_the_intervals(self, panels: list[Panel]) -> None:
        first, wolves, sheep = curves_png.draw_figure(panels, "steps").axes
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
        figure = curves_png.draw_figure([one_panel(HOSTILE, HOSTILE)], "steps")
        figure.savefig(io.BytesIO(), format="png")
        assert "\x1b" not in figure.axes[0].get_title()

    def test_a_single_point_is_visible_and_many_groups_differ(self) -> None:
        (axes,) = curves_png.draw_figure([one_panel(num_points=1)], "steps").axes
        assert axes.lines[0].get_marker() == "o"
        styles = set()
        for k in range(2 * len(COLORS)):
            (line,) = curves_png.draw_figure([one_panel(color_index=k)], "steps").axes[0].lines
            styles.add((line.get_color(), line.get_linestyle()))
        assert len(styles) == 2 * len(COLORS)

    def test_too_many_panels_are_refused(self) -> None:
        for draw in (curves_png.draw_png, curves_html.draw_html):
            with pytest.raises(ValueError, match=f"have {MAX_PANELS + 1} panels"):
                draw([one_panel()] * (MAX_PANELS + 1), "steps")


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
        page = curves_html.draw_html([one_panel(HOSTILE, HOSTILE)], "steps")
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
        page = curves_html.draw_html([one_panel(HOSTILE, HOSTILE)], "steps")
        assert page.count("</script>") == curves_html.draw_html([one_panel()], "steps").count("</script>")
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


class TestFilesThatExist:
    @pytest.mark.parametrize("option", ["--png", "--html"])
    def test_a_file_is_replaced_with_force_alone(
        self, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
    ) -> None:
        file = tmp_path / "file"
        file.write_text("mine")
        assert main(["plot", str(runs), option, str(file)]) == 1
        assert capsys.readouterr().err == f"gpuvec: {file} exists: give another name, or --force to replace it.\n"
        assert file.read_text() == "mine"
        assert main(["plot", str(runs), option, str(file), "--force"]) == 0
        assert file.stat().st_size > 1000
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_the_default_is_a_picture_in_the_working_folder(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        shutil.copytree(runs, tmp_path / "runs")
        assert main(["plot"]) == 0
        assert main(["plot"]) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["learning_curves.png", "runs"]

    def test_folders_and_links_are_never_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "target").write_text("mine")
        (tmp_path / "link").symlink_to(tmp_path / "target")
        for name in ("folder", "link"):
            with pytest.raises(FileExistsError, match=r"exists: give another name\."):
                output_file.write_file(tmp_path / name, b"new", force=True)
        with pytest.raises(FileNotFoundError, match="create it first"):
            output_file.write_file(tmp_path / "no" / "file", b"new", force=True)
        assert (tmp_path / "target").read_text() == "mine"

    def test_a_file_that_appears_in_the_meantime_remains(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "file"
        monkeypatch.setattr(output_file, "require_writable", lambda path, force: path.write_text("theirs"))
        with pytest.raises(FileExistsError):
            output_file.write_file(file, b"ours", force=False)
        assert file.read_text() == "theirs"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_a_file_system_without_hard_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def link(source: Path, target: Path) -> None:
            raise PermissionError("no hard links")

        monkeypatch.setattr(output_file.os, "link", link)
        output_file.write_file(tmp_path / "file", b"ours", force=False)
        assert (tmp_path / "file").read_bytes() == b"ours"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


class TestTable:
    def test_shows_groups_with_statistics(self, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["compare", str(runs)]) == 0
        head, *rows = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
        assert head == [
            "environment", "algorithm", "seeds", "metric", "final", "evaluated", "env steps", "env steps/s",
            "steps to threshold", "settings",
        ]  # fmt: skip
        assert rows == [
            ["gpuvec/CartPole-v1", "ppo", "3", "return", "960 [480, 1440]", "200 [100, 300]", "200", "200", "200",
             "learning_rate=0.1"],
            ["gpuvec/CartPole-v1", "ppo", "1", "return", "6", "-", "200", "200", "475 not reached", "learning_rate=0.2"],
            ["gpuvec/Predators-v0", "ppo", "1", "wolves/return", "2", "-", "200", "200", "-"],
            ["gpuvec/Predators-v0", "ppo", "1", "sheep/return", "4", "-", "200", "200", "-"],
        ]  # fmt: skip

    def test_writes_csv_with_all_digits(self, runs: Path, tmp_path: Path) -> None:
        file = tmp_path / "table.csv"
        assert main(["compare", str(runs), "--csv", str(file)]) == 0
        assert main(["compare", str(runs), "--csv", str(file)]) == 1
        with file.open() as table:
            first, second, *_ = csv.DictReader(table)
        assert [float(first[name]) for name in ("final", "final_low", "threshold")] == pytest.approx([960.0, 480.0, 475.0])
        assert (first["seeds_at_threshold"], float(first["steps_to_threshold"])) == ("3", 200.0)
        assert (second["final"], second["final_low"], second["steps_to_threshold"]) == ("6.0", "", "")

    def test_a_run_without_evaluations_has_no_steps_to_the_threshold(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_run(tmp_path, 1, {"return": [500.0]}, evaluate_params={})
        assert main(["compare", str(tmp_path)]) == 0
        assert "  not evaluated" in capsys.readouterr().out

    def test_text_from_files_is_no_formula(self) -> None:
        none = Estimate(math.nan, math.nan, math.nan)
        row = Comparison("=1+2", "ppo", 1, "return", none, none, (1.0, 1.0), 1.0, math.nan, math.nan, 0, 0, "")
        assert next(iter(csv.DictReader(io.StringIO(csv_text([row])))))["environment"] == "'=1+2"

    def test_the_module_of_an_environment_is_not_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = set(sys.modules)
        assert math.isnan(reward_threshold("antigravity:no/Such-v0"))
        assert set(sys.modules) == before
        assert reward_threshold("any_module:gpuvec/CartPole-v1") == 475.0


@pytest.mark.parametrize("command", ["plot", "compare"])
class TestBadRuns:
    def test_a_damaged_run_is_named_and_the_others_are_shown(
        self, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        good = sorted(runs.iterdir())[0]
        damaged = write_run(tmp_path, 1, {"return": [1.0]})
        (damaged / "args.json").write_text("{")
        assert main([command, str(damaged), str(good), str(tmp_path / "none")]) == 0
        printed = capsys.readouterr()
        first, second = printed.err.splitlines()
        assert first == f"gpuvec: {damaged}/args.json is damaged: it is not a JSON object of settings. It is left out."
        assert second.startswith(f"gpuvec: there is no folder {tmp_path}/none")
        assert "CartPole" in printed.out or "1 curve of 1 run" in printed.out

    def test_without_any_run_the_command_fails(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
        assert main([command, str(tmp_path)]) == 1
        first, second = capsys.readouterr().err.splitlines()
        assert "is not a run folder: it has no args.json. It is left out." in first
        assert "none of the runs" in second

    def test_control_characters_of_files_are_not_printed(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = write_run(tmp_path / "runs", 1, {"return": [1.0]}, env=HOSTILE, **{"rate\x1b[2J": 1})
        hostile = path.rename(path.with_name("x\x1b[31m__ppo\x1b[0m__1__now"))
        write_run(tmp_path / "runs", 1, {"return": [1.0]}, env=HOSTILE, **{"rate\x1b[2J": 2})
        write_run(tmp_path / "runs", 1, {"entropy": [1.0], "\x1b]0;title\x07": [1.0]})
        assert main([command]) == 0
        (hostile / "args.json").write_text("")
        assert main([command, str(hostile), "runs", *(["--force"] if command == "plot" else [])]) == 0
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out + printed.err
        assert "\x07" not in printed.out + printed.err
        assert "x?[31m__ppo" in printed.err

    def test_an_unknown_metric_lists_those_there_are(
        self, runs: Path, capsys: pytest.CaptureFixture[str], command: str
    ) -> None:
        assert main([command, str(runs), "--metric", "retrun"]) == 1
        assert (
            "has no metric 'retrun'; it has eval_return, gpu_memory, iteration, return, seconds, steps"
            in capsys.readouterr().err
        )


@pytest.mark.parametrize(("option", "package", "extra"), [("--png", "matplotlib", "plot"), ("--html", "plotly", "plotly")])
def test_a_missing_package_names_its_extra(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, package: str, extra: str
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    draw = curves_png.draw_png if option == "--png" else curves_html.draw_html
    with pytest.raises(MissingExtraError, match=rf'needs {package} .*pip install .*\[{extra}\]"'):
        draw([one_panel()], "steps")
    assert main(["plot", str(runs), option, str(tmp_path / "file")]) == 1
    assert list(tmp_path.iterdir()) == []
