"""Pictures of the trials of a search: the lines, the axes, and files that anybody may have written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tyro")
pytest.importorskip("matplotlib", reason="extra `plot`")
pytest.importorskip("plotly", reason="extra `plotly`")

from gpuvec.cli import main, trials_html, trials_png
from gpuvec.learners.population.search.search_space import SearchParameter, Trials
from gpuvec.learners.runs.npz_files import to_npz

RATE, GRAVITY = SearchParameter("learning_rate", "log", 1e-4, 1e-2), SearchParameter("params.gravity", "linear", 5.0, 15.0)
VALUES = {"learning_rate": np.array([1e-4, 1e-3, 1e-2, 1e-3]), "params.gravity": np.array([10.0, 15.0, 5.0, 7.0])}
TRIALS = Trials("gpuvec/X-v0", (RATE, GRAVITY), VALUES, np.array([30.0, 10.0, 20.0, np.nan]), np.zeros(4, np.int64))


def write_sweep(path: Path, record: Any, arrays: dict[str, Any]) -> Path:
    """Writes the folder of a search, and returns its path."""
    path.mkdir()
    (path / "sweep.json").write_text(json.dumps(record))
    (path / "trials.npz").write_bytes(to_npz(arrays))
    return path


def test_each_trial_is_a_line_from_setting_to_setting_and_to_its_score() -> None:
    figure = trials_png.draw_trials_figure(TRIALS)
    (lines,) = figure.axes[0].collections[:1]
    heights = [[y for _, y in segment.vertices] for segment in lines.get_paths()]
    # The one without a score is left out, and the best one is on top.
    np.testing.assert_allclose(heights, [[0.5, 1.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 1.0]])
    assert lines.get_array().tolist() == [10.0, 20.0, 30.0]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["learning_rate", "params.gravity", "score"]
    assert [axes.get_xscale() for axes in figure.axes[1:]] == ["log", "linear"]


def test_a_page_has_logarithmic_axes() -> None:
    (trace,) = trials_html.draw_trials_figure(TRIALS).data
    rate, gravity, score = trace.dimensions
    np.testing.assert_allclose(rate["values"], [-4.0, -3.0, -2.0])
    assert rate.ticktext[0] == "0.0001"
    assert rate.ticktext[-1] == "0.01"
    assert list(gravity["values"]) == [10.0, 15.0, 5.0]
    assert list(score["values"]) == [30.0, 10.0, 20.0] == list(trace.line.color)


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
        ([list(RATE)], {"score": TRIALS.scores, "part": TRIALS.parts}, "has not the trials of a search"),
        ([list(RATE)], {"score": TRIALS.scores[:2], "part": TRIALS.parts, **VALUES}, "has not a number for each trial"),
    ],
)
def test_a_damaged_search_is_refused(
    parameters: Any, arrays: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sweep(tmp_path / "sweep", {"base": {}, "parameters": parameters}, arrays)
    assert main(["plot", str(path), "--png", str(tmp_path / "trials.png")]) == 1
    assert message in capsys.readouterr().err
