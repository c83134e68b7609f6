"""Trainings that their caller stops: the result, the checkpoint and the run folder of what was trained until then."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")
pytest.importorskip("rich")

from gpuvec.cli import main
from gpuvec.learners import iterations
from gpuvec.learners.ppo import PPOArgs, train
from gpuvec.learners.runs.checkpoint import load
from gpuvec.learners.runs.history import summarize_runs
from gpuvec.learners.runs.run_writer import RunWriter

ARGS = PPOArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=8, num_steps=8, hidden=(8,), num_iterations=5,
    params={"max_episode_steps": 9},
)  # fmt: skip


def same_parameters(one: Any, other: Any) -> bool:
    return all(map(torch.equal, one.network.parameters(), other.network.parameters()))


def test_a_stopped_training_continues_bit_for_bit(device: str) -> None:
    args = replace(ARGS, device=device)
    reported: list[float] = []

    def stop_after_two(learner: Any, metrics: dict[str, float]) -> bool:
        reported.append(metrics["iteration"])
        return metrics["iteration"] == 2

    stopped = train(args, stop_after_two)
    assert stopped.ended_by == "on_iteration"
    assert reported == [row["iteration"] for row in stopped.history] == [1, 2]
    assert stopped.checkpoint["iteration"] == 2
    rest, whole = train(args, checkpoint=stopped.checkpoint), train(args)
    assert rest.ended_by == whole.ended_by == "total_steps"
    assert same_parameters(rest, whole)
    assert not same_parameters(stopped, whole)


def test_an_iteration_that_was_launched_is_reported_too(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterations, "reads_late", lambda device: True)  # also on a CPU
    reported: list[float] = []

    def stop_after_two(learner: Any, metrics: dict[str, float]) -> bool:
        reported.append(metrics["iteration"])
        return metrics["iteration"] == 2

    stopped = train(replace(ARGS, device=device), stop_after_two, exact_at=lambda iteration: False)
    assert stopped.ended_by == "on_iteration"
    assert reported == [1, 2, 3]
    assert stopped.checkpoint["iteration"] == len(stopped.history) == 3


@pytest.mark.parametrize(
    ("target", "answer", "ended_by", "length"),
    [
        (None, None, "total_steps", 5),
        (None, 0, "total_steps", 5),
        (5.0, None, "target_return", 1),
        (5.0, True, "target_return", 1),
    ],
)
def test_a_result_says_what_ended_the_training(target: float | None, answer: Any, ended_by: str, length: int) -> None:
    """The first evaluation reaches a return of five, since each pole stands for eight steps and more."""
    args = replace(ARGS, target_return=target)
    result = train(args, lambda learner, metrics: answer if metrics["iteration"] == length else None)
    assert (result.ended_by, len(result.history)) == (ended_by, length)


def test_a_run_folder_records_the_stop_and_resume_completes_it(tmp_path: Path) -> None:
    args = ARGS.resolved("cpu")
    run = RunWriter.new(tmp_path, "ppo", asdict(args))

    def log_and_stop(learner: Any, metrics: dict[str, float]) -> bool:
        run.log(metrics)
        return metrics["iteration"] == 2

    result = train(args, log_and_stop)
    run.save(result.checkpoint)
    run.finish({"ended_by": result.ended_by})
    run.close()
    (summary,) = summarize_runs(tmp_path)
    assert (summary.state, summary.iteration, summary.num_iterations) == ("stopped", 2, 5)
    assert main(["resume", str(run.path), "--episodes", "1"]) == 0
    assert json.loads((run.path / "result.json").read_text())["ended_by"] == "total_steps"
    (summary,) = summarize_runs(tmp_path)
    assert (summary.state, summary.iteration) == ("complete", 5)
    whole = train(args).checkpoint["policies"]["all"]["network"]
    assert all(torch.equal(x, whole[name]) for name, x in load(run.path)["policies"]["all"]["network"].items())
