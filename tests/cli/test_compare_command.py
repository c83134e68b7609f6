"""`gpuvec compare`: tables of groups of runs, and text from other people's files."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from tests.support.run_folders import write_compared_runs, write_run

from gpuvec.cli import main
from gpuvec.cli.compare_command import csv_text
from gpuvec.learners.runs.comparison import Comparison, Estimate, reward_threshold

HOSTILE = "x/<b>$\\frac$</script>\x1b[31m-v0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_compared_runs(tmp_path_factory.mktemp("runs"))


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
