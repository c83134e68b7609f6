"""`gpuvec train --population`, and the commands that take its folder."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main  # imported after torch, which it needs
from gpuvec.cli.population_run import PopulationProgress
from gpuvec.learners.population import population_training
from gpuvec.learners.population.batched.batched_population import BatchedPopulation
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.results.population_folder import load_population

TINY = [
    "--device", "cpu", "--num-steps", "16", "--num-envs", "3", "--num-minibatches", "3", "--hidden", "8", "--params",
    "max_episode_steps", "5", "--evaluate-params", "max_episode_steps", "5",
]  # fmt: skip


@cache
def trained(tmp: Path) -> Path:
    """Returns the folder of a population."""
    assert main(["train", "--population", "5", "--best", "2", "--total-steps", "144", "--runs", str(tmp), *TINY]) == 0
    (path,) = tmp.iterdir()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs"))


def test_it_prints_the_best_agents_whose_folders_are_ordinary_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = load_population(folder)
    assert saved.args.num_agents == 5
    assert saved.history.steps.tolist() == [48, 96, 144]
    (best,) = folder.glob("best-1__ppo__*")
    assert len(list(folder.glob("best-*"))) == 2
    assert main(["eval", str(best), "--episodes", "3", "--device", "cpu"]) == 0
    assert main(["export", str(best), "--format", "safetensors", "--to", str(folder / "policy.safetensors")]) == 0
    assert "mean return 5.0" in capsys.readouterr().out


def test_it_resumes_where_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trained(tmp_path)
    assert main(["runs", str(tmp_path)]) == 0
    assert re.search(r"gpuvec/CartPole-v1 +population +5 agents +3/3 +5\.0 .* complete", capsys.readouterr().out)
    assert main(["resume", str(path)]) == 1
    assert "is complete, with 3 iterations: give a larger --total-steps" in capsys.readouterr().err
    assert main(["sweep", "--resume", str(path)]) == 1
    assert "is not the folder of a search: it has no sweep.json" in capsys.readouterr().err
    assert main(["resume", str(path), "--total-steps", "240"]) == 0
    assert load_population(path).history.steps.tolist() == [48, 96, 144, 192, 240]
    assert re.search(r"best-1__ppo__\d", capsys.readouterr().out)


def test_plot_draws_a_population(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "p.png"
    assert main(["plot", str(folder), "--png", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(folder), "--png", str(tmp_path / "q.png"), "--metric", "nothing"]) == 1
    assert main(["plot", str(folder), str(folder), "--png", str(tmp_path / "q.png")]) == 1
    output = capsys.readouterr()
    assert "quantiles of 5 agents" in output.out
    assert "has no metric 'nothing'; it has episodes, return" in output.err
    assert "a population is drawn alone" in output.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--population", "-3"], "num_agents must be an integer from 1"),
        (["--population", "2", "--algorithm", "a2c"], "--population trains by ppo, got --algorithm a2c"),
        (["--population", "2", "--num-envs", "auto"], "--num-envs auto is for one policy"),
        (["--population", "2", "--log", "tensorboard"], "--log tensorboard is for one policy"),
        (["--population", "2", "--hidden", "8", "8", "8"], r"one or two hidden layers, got \(8, 8, 8\): nearest is \(8, 8\)"),
        (["--population", "2", "--env", "gpuvec/TagGridWorld-v0", "--no-normalize"], "has many agents, which a population"),
    ],
)
def test_errors_name_the_limit(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--device", "cpu", "--runs", str(tmp_path / "runs"), *arguments]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_sweep_searches_and_prints_the_best_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranges = ["--param", "learning_rate", "log", "1e-4", "1e-2", "--param", "params.gravity", "linear", "5", "15"]
    options = ["--trials", "4", "--reduction", "2", "--halvings", "1", "--confirm", "2", "--confirmation-seeds", "3"]
    assert main(["sweep", *ranges, *options, "--total-steps", "96", "--runs", str(tmp_path), *TINY]) == 0
    output = capsys.readouterr().out
    assert "4 trials to iteration 1" in output
    assert "2 trials to iteration 2" in output
    (path,) = tmp_path.iterdir()
    record = json.loads((path / "sweep.json").read_text())
    best = record["confirmations"][0]
    assert best["settings"] == record["best"]
    assert len(best["returns"]) == 3
    assert best["low"] <= best["interquartile_mean"] <= best["high"]
    assert f"--learning-rate {record['best']['learning_rate']:.6g} " in output
    assert f"gravity {record['best']['params.gravity']:.6g}" in output
    with np.load(path / "trials.npz") as trials:
        assert trials["score"].shape == trials["learning_rate"].shape == (4,)
    (run,) = path.glob("best__ppo__*")
    assert main(["eval", str(run), "--episodes", "3", "--device", "cpu"]) == 0


def test_sweep_trains_by_population_based_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranges = ["--param", "learning_rate", "log", "1e-4", "1e-2"]
    assert main(["sweep", *ranges, "--trials", "4", "--pbt", "1", "--total-steps", "144", "--runs", str(tmp_path), *TINY]) == 0
    assert "schedule of the best" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    with np.load(path / "population.npz") as arrays:
        assert arrays["schedule/iterations"].tolist() == [1, 2]
        assert arrays["schedule/setting.learning_rate"].shape == (3, 4)
    assert load_population(path).args.num_agents == 4


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Returns a function that makes the process send itself a signal after some launches."""

    def schedule(number: int, launches: int) -> None:
        left = [launches]

        def update(*arguments: object) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(PopulationProgress, "update", update)

    return schedule


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_a_sweep_that_is_interrupted_continues_with_the_same_result(
    sent: str, tmp_path: Path, interrupt_after: Callable[[int, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "--param", "learning_rate", "log", "1e-4", "1e-2", "--trials", "4", "--reduction", "2"]
    command += ["--halvings", "1", "--confirm", "2", "--confirmation-seeds", "3", "--total-steps", "192", *TINY]
    assert main([*command, "--runs", str(tmp_path / "whole")]) == 0
    number = signal.Signals[sent]
    interrupt_after(number, 3)
    capsys.readouterr()
    assert main([*command, "--runs", str(tmp_path / "stopped")]) == 128 + number
    (whole,), (path,) = ((tmp_path / name).iterdir() for name in ("whole", "stopped"))
    assert f"stopped    in part 2 of 3; to continue: gpuvec sweep --resume {path}" in capsys.readouterr().out
    assert main(["runs", str(tmp_path / "stopped")]) == 0
    assert re.search(r"gpuvec/CartPole-v1 +sweep +4 trials +1/3 +none yet .* stopped", capsys.readouterr().out)
    assert main([*({"SIGINT": ["sweep", "--resume"], "SIGTERM": ["resume"]}[sent]), str(path)]) == 0
    assert main(["runs", str(tmp_path / "stopped")]) == 0
    assert re.search(r"sweep +4 trials +3/3 +5\.0 .* complete", capsys.readouterr().out)
    assert (path / "sweep.json").read_text() == (whole / "sweep.json").read_text()
    assert (path / "trials.npz").read_bytes() == (whole / "trials.npz").read_bytes()
    assert main(["sweep", "--resume", str(path)]) == 1
    assert main(["sweep", "--resume", str(tmp_path)]) == 1
    assert main(["resume", str(path), "--total-steps", "960"]) == 1
    errors = capsys.readouterr().err
    assert "is of a search, whose parts depend on the number of steps: give no --total-steps." in errors
    assert "is complete: start another search" in errors
    assert "is not the folder of a search: it has no sweep.json" in errors


def test_populations_that_are_interrupted_continue(
    tmp_path: Path, interrupt_after: Callable[[int, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    training = ["train", "--population", "2", "--total-steps", "144", *TINY]
    pbt = ["sweep", "--param", "learning_rate", "log", "1e-4", "1e-2", "--trials", "4", "--pbt", "1", *training[3:]]
    for command, name in ((training, "resume"), (pbt, "sweep --resume")):
        interrupt_after(signal.SIGINT, 2)
        runs = tmp_path / command[0]
        assert main([*command, "--runs", str(runs)]) == 128 + signal.SIGINT
        (path,) = runs.iterdir()
        assert f"after 2 of 3 iterations; to continue: gpuvec {name} {path}" in capsys.readouterr().out
        assert main([*name.split(), str(path)]) == 0
        assert load_population(path).history.steps.tolist() == [48, 96, 144]


def test_a_population_that_is_interrupted_before_its_first_iteration_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: PopulationArgs) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return BatchedPopulation(args)

    monkeypatch.setattr(population_training, "make_population", interrupted)
    assert main(["train", "--population", "2", "--runs", str(tmp_path), *TINY]) == 128 + signal.SIGINT
    assert "before the first iteration: there is nothing to save" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_sweep_refuses_a_wrong_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--device", "cpu", "--param", "hidden", "log", "1", "2"]) == 1
    assert main(["sweep", "--device", "cpu", "--param", "gamma", "linear", "0.9", "1.1"]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert "hidden cannot be varied" in errors[0]
    assert "gamma must be from 0 to 1, got 1.1" in errors[1]


def test_an_interval_of_changes_that_is_shorter_than_an_episode_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*TINY, "--total-steps", "480", "--param", "learning_rate", "log", "1e-4", "1e-2", "--trials", "4", "--pbt", "2"]
    options[options.index("max_episode_steps") + 1] = "40"
    assert main(["sweep", *options, "--runs", str(tmp_path)]) == 1
    assert "Use an interval of at least 3." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
