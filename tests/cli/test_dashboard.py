"""The dashboard of a training, drawn at a fixed width, and the plain lines without a terminal."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("tyro")

from gpuvec.cli.progress import ASCII_BARS, BARS, MAX_MEANS, Progress, Sparkline, clock

METRICS = {"iteration": 30.0, "steps": 3000.0, "seconds": 60.0, "steps_per_second": 1234567.0, "gpu_memory": 0.0}
STAGES = {"collect": 3.0, "estimate": 1.0, "improve": 4.0}


def draw(dashboard: Any, width: int = 80, encoding: str = "utf-8") -> list[str]:
    """Returns the lines of the picture without its frame."""
    from rich.console import Console

    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(width=width, file=file, force_terminal=True, color_system=None)
    console.print(dashboard)
    file.flush()
    lines = file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]  # it is the BytesIO
    assert max(map(len, lines)) <= width
    return [line.strip("│| ").strip() for line in lines]


def row(lines: list[str], name: str) -> str:
    """Returns the text of the only line that begins with `name`, without the name."""
    (line,) = (line for line in lines if line.startswith(name + " "))
    return line.removeprefix(name).strip()


class TestDashboard:
    def test_shows_progress_speed_times_and_shares(self) -> None:
        dashboard = Progress("PPO on [b]x/Y-v0[/b]", 120)
        for iteration in range(1, 31):  # two seconds each
            dashboard.update({**METRICS, "iteration": float(iteration), "seconds": 2.0 * iteration + 5.0}, STAGES)
        lines = draw(dashboard)
        assert "PPO on [b]x/Y-v0[/b]" in lines[0]
        assert lines[1].endswith("25%")
        assert row(lines, "iteration") == "30 of 120"
        assert row(lines, "env steps") == "3,000"
        assert row(lines, "env steps/s") == "1,234,567"
        assert row(lines, "time") == "1:05 elapsed, 3:00 left"
        assert row(lines, "stages") == "collect 38%  estimate 12%  improve 50%"
        assert not any(line.startswith("GPU memory") for line in lines)

    def test_names_the_memory_of_a_gpu_and_one_graph(self) -> None:
        dashboard = Progress("title", 120, may_end_early=True)
        dashboard.update({**METRICS, "gpu_memory": 1.5 * 2**30}, STAGES, stages_in_one_graph=True)
        lines = draw(dashboard, width=100)
        assert row(lines, "GPU memory") == "1.50 GiB"
        assert row(lines, "stages").endswith("improve 50%  (one graph: measured once)")
        assert row(lines, "time") == "1:00 elapsed, at most 0:00 left"

    def test_the_first_iteration_estimates_from_its_own_speed(self) -> None:
        dashboard = Progress("title", 11)
        dashboard.update({**METRICS, "iteration": 1.0, "steps": 100.0, "seconds": 30.0, "steps_per_second": 50.0}, {})
        assert row(draw(dashboard), "time") == "0:30 elapsed, 0:20 left"

    def test_shows_the_metrics_of_one_policy_and_of_the_environment(self) -> None:
        dashboard = Progress("title", 120)
        dashboard.update({**METRICS, "return": 12.5, "value_loss": 0.25, "metrics/return": 3.0, "episodes": 7.0}, STAGES)
        dashboard.update({**METRICS, "return": float("nan"), "value_loss": 0.125}, STAGES)
        lines = draw(dashboard)
        assert [line.split() for line in lines if line.startswith("return")] == [["return", "12.5", "▁"], ["return", "3"]]
        assert row(lines, "value loss") == "0.125"
        assert row(lines, "episodes") == "7"
        assert lines.index("environment") > lines.index("policy")

    def test_shows_the_metrics_of_roles_side_by_side(self) -> None:
        dashboard = Progress("title", 120)
        for value in range(8):
            roles = {"wolves/return": float(value), "sheep/return": -float(value)}
            dashboard.update({**METRICS, **roles, "wolves/entropy": 0.5, "sheep/entropy": 1.25, "sheep/value_loss": 3.0}, {})
        lines = draw(dashboard)
        assert row(lines, "wolves return").split() == ["7", "▁▂▃▄▅▆▇█"]
        assert row(lines, "sheep return").split() == ["-7", "█▇▆▅▄▃▂▁"]
        assert row(lines, "policy").split() == ["wolves", "sheep"]
        assert row(lines, "entropy").split() == ["0.5", "1.25"]
        assert row(lines, "value loss") == "3"
        assert not any(line.startswith("stages") for line in lines)

    def test_a_terminal_without_unicode_gets_ascii(self) -> None:
        dashboard = Progress("title", 120)
        for value in (0.0, 1.0):
            dashboard.update({**METRICS, "return": value}, STAGES)
        assert row(draw(dashboard, encoding="ascii"), "return").split() == ["1", f"{ASCII_BARS[0]}{ASCII_BARS[-1]}"]

    @pytest.mark.parametrize("width", [30, 50])
    def test_narrow_terminals_get_all_numbers(self, width: int) -> None:
        dashboard = Progress("PPO on gpuvec/CartPole-v1, 128 environments on cpu, seed 1", 120)
        dashboard.update({**METRICS, "return": 12.5}, STAGES)
        text = " ".join(draw(dashboard, width))
        assert all(number in text for number in ("30 of 120", "3,000", "1,234,567", "38%", "50%", "12.5"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress("a title", 30) as progress:
        progress.update({**METRICS, "return": 12.5}, STAGES)
    assert "a title" in terminal.getvalue()
    assert "collect 38%" in terminal.getvalue()
    assert "complete" in terminal.getvalue()


def test_plain_lines_name_the_return_of_each_role(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("title", 30) as progress:
        of_env = {f"metrics/m{k}": float(k) for k in range(5)}
        progress.update({**METRICS, "wolves/return": 1.5, "sheep/return": -2.0, "sheep/entropy": 1.0, **of_env}, STAGES)
    assert capsys.readouterr().out.splitlines() == [
        "title",
        "   30/30         3,000 steps     1,234,567/s  wolves/return 1.5  sheep/return -2  m0 0  m1 1  m2 2  m3 3",
    ]


def test_plain_lines_of_one_policy(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("title", 30) as progress:
        progress.update({**METRICS, "value_loss": 2.0, "entropy": 0.5, "return": 12.5, "metrics/grass": 7.0}, STAGES)
    line = "   30/30         3,000 steps     1,234,567/s  return 12.5  entropy 0.5  grass 7"
    assert capsys.readouterr().out.splitlines() == ["title", line]


class TestSparkline:
    def test_levels_are_between_the_lowest_and_the_highest_value(self) -> None:
        curve = Sparkline()
        for value in (-4.0, 4.0, 0.0):
            curve.add(value)
        assert curve.text(8) == f"{BARS[0]}{BARS[-1]}{BARS[4]}"
        assert Sparkline().text(8) == ""

    def test_a_constant_is_flat(self) -> None:
        curve = Sparkline()
        for _ in range(3):
            curve.add(2.0)
        assert curve.text(8) == BARS[0] * 3

    def test_a_long_curve_keeps_its_shape_and_bounded_memory(self) -> None:
        curve = Sparkline()
        for value in range(100 * MAX_MEANS):
            curve.add(float(value))
        text = curve.text(32)
        assert MAX_MEANS // 2 <= len(curve._means) < MAX_MEANS
        assert 16 <= len(text) <= 32
        assert list(text) == sorted(text, key=BARS.index)
        assert (text[0], text[-1]) == (BARS[0], BARS[-1])


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599.0, "59:59"), (3725.0, "1:02:05")])
def test_durations(seconds: float, text: str) -> None:
    assert clock(seconds) == text
