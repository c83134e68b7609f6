"""What a command shows of its waits and of the metrics of a training, as lines."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import progress as progress_module
from gpuvec.cli.progress import Progress, Waiting, waiting
from gpuvec.learners.ppo import PPOArgs, train


class TestWaiting:
    def test_a_long_operation_is_named_on_standard_error(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress_module, "SECONDS_UNTIL_SHOWN", 0.0)
        wait = Waiting("compiling")
        wait._timer.join()
        wait.close()
        assert capsys.readouterr().err == "compiling ...\n"

    def test_a_short_operation_is_not_named(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress_module, "SECONDS_UNTIL_SHOWN", 1000.0)
        with waiting("compiling"):
            pass
        assert capsys.readouterr().err == ""

    def test_training_reports_its_phases(self) -> None:
        phases: list[str] = []
        settings: dict[str, Any] = {"device": "cpu", "num_envs": 4, "num_steps": 8, "total_steps": 32, "hidden": (8,)}
        train(PPOArgs(**settings), on_phase=phases.append)
        # The reset is compiled first, and the step with the first iteration. No line is printed twice.
        assert phases == ["compiling gpuvec/CartPole-v1", "", "compiling the first iteration of gpuvec/CartPole-v1", ""]


def test_progress_keeps_the_last_value_of_a_missing_metric(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"iteration": 1.0, "steps": 10.0, "seconds": 1.0, "steps_per_second": 10.0, "return": 42.0}
    with Progress("title", 2) as progress:
        progress.update(metrics)
        progress.update({**metrics, "iteration": 2.0, "return": float("nan")})
    title, first, last = capsys.readouterr().out.splitlines()
    assert title == "title"
    assert "1/2" in first
    assert "2/2" in last
    assert "return 42" in last
