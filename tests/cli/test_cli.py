"""Tests of the command line: output and files of the commands, error messages, and the cost of `--help`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main, parse_command
from gpuvec.cli.eval_command import confidence_interval
from gpuvec.errors import StateError
from gpuvec.learners.a2c import A2C
from gpuvec.learners.on_policy import ROLLOUT_METRICS
from gpuvec.learners.ppo import PPO
from gpuvec.learners.runs.checkpoint import FORMAT, load
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.run_writer import RunWriter

TINY = ["--num-envs", "4", "--num-steps", "8", "--total-steps", "96", "--device", "cpu", "--episodes", "3"]


@pytest.fixture(scope="module")
def training_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run of three iterations in a separate process, and the output of that process."""
    runs = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "gpuvec", "train", "--env", "gpuvec/CartPole-v1", "--seed", "5", *TINY]
    process = subprocess.run([*command, "--runs", str(runs)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    (folder,) = runs.iterdir()
    return folder, process.stdout


class TestTrain:
    def test_prints_plain_lines_without_a_terminal(self, training_run: tuple[Path, str]) -> None:
        folder, printed = training_run
        lines = printed.splitlines()
        assert lines[0] == "PPO on gpuvec/CartPole-v1, 4 environments on cpu, seed 5"
        assert "3/3" in lines[-5]
        assert lines[-4].startswith("trained    96 steps in ")
        assert lines[-3].startswith("evaluated  mean return ")
        assert lines[-3].endswith(", solved at 475)")
        assert lines[-2] == "parameters the environment's own"
        assert lines[-1] == f"run        {folder}"
        assert "\x1b" not in printed

    def test_writes_a_run_folder(self, training_run: tuple[Path, str]) -> None:
        folder, _ = training_run
        assert folder.name.startswith("gpuvec-CartPole-v1__ppo__5__")
        file_names = ["args.json", "checkpoint-3.pt", "lock", "metrics.jsonl", "result.json", "versions.json"]
        assert sorted(p.name for p in folder.iterdir()) == file_names
        args = json.loads((folder / "args.json").read_text())
        assert (args["seed"], args["num_envs"], args["device"], args["total_steps"]) == (5, 4, "cpu", 96)
        assert json.loads((folder / "versions.json").read_text())["numpy"]
        rows = [json.loads(line, parse_constant=pytest.fail) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [(row["iteration"], row["steps"]) for row in rows] == [(1, 32), (2, 64), (3, 96)]
        assert all(set(ROLLOUT_METRICS + PPO.update_metrics) <= row.keys() for row in rows)

    def test_eval_runs_the_checkpoint(self, training_run: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
        folder, _ = training_run
        assert load(folder)["iteration"] == 3
        assert main(["eval", str(folder), "--episodes", "7", "--device", "cpu"]) == 0
        first = capsys.readouterr().out
        assert first.startswith("gpuvec/CartPole-v1: mean return ")
        assert "over 7 episodes" in first
        assert main(["eval", str(folder / "checkpoint-3.pt"), "--episodes", "7", "--device", "cpu"]) == 0
        assert capsys.readouterr().out == first


def test_train_and_eval_with_another_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--algorithm", "a2c", "--seed", "5", "--runs", str(tmp_path), *TINY]) == 0
    assert capsys.readouterr().out.startswith("A2C on gpuvec/CartPole-v1, 4 environments on cpu, seed 5\n")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("gpuvec-CartPole-v1__a2c__5__")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(
        set(ROLLOUT_METRICS + A2C.update_metrics)
        == row.keys() - {"iteration", "steps", "seconds", "steps_per_second", "gpu_memory"}
        for row in rows
    )
    assert main(["eval", str(folder), "--episodes", "7", "--device", "cpu"]) == 0
    # The setting belongs to PPO.
    assert main(["train", "--algorithm", "a2c", "--clip", "0.1"]) == 2


def test_an_evaluation_has_the_own_parameters_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The training's episodes end after three steps; own ones are longer, and the threshold is for them alone."""
    limited = ["--params", "max_episode_steps", "3", "--runs", str(tmp_path)]
    assert main(["train", *limited, *TINY]) == 0
    own = r"solved at 475\)\nparameters the environment's own \(trained with max_episode_steps 3\)\n"
    assert re.search(f"{own}run ", out(capsys))
    (folder,) = tmp_path.iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert (result["params"], result["mean_return"] > 3.0) == ({}, True)
    command = ["eval", str(folder), "--episodes", "3", "--seed", "1", "--device", "cpu"]
    assert main(command) == 0
    text = out(capsys)
    assert f"mean return {result['mean_return']:.1f} " in text  # the evaluation at the end of the training
    assert re.search(f"{own}$", text)
    for options, used in ((["--training-params"], 3), (["--params", "max_episode_steps", "2"], 2)):
        assert main([*command, *options]) == 0
        text = out(capsys)
        assert f": mean return {used}.0 +- 0.0 " in text
        assert f"parameters max_episode_steps {used}, and else the environment's own" in text
        assert "solved" not in text
    assert main([*command, "--params", "grvity", "2"]) == 1
    assert main(["train", "--evaluate-params", "max_episode_steps", "2", *limited, *TINY]) == 0
    assert "parameters max_episode_steps 2, and else the environment's own (trained with max_episode_steps 3)" in out(capsys)


def out(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_the_interval_counts_episodes_and_not_agents() -> None:
    """The interval is 1.96 times the standard error, which is sqrt(5 / 3) / 2 for 1, 2, 3, 4."""
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert confidence_interval(returns, 3) == " +- 1.265"
    assert confidence_interval(returns[:, None] + torch.tensor([-5.0, 0.0, 5.0]), 3) == " +- 1.265"
    assert confidence_interval(returns[:1]) == ""


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["train", "--env", "gpuvec/CartPol-v1"], "did you mean gpuvec/CartPole-v1?"),
            (["train", "--env", "no_such_module:x/Y-v0"], "there is no module 'no_such_module'"),
            (["eval", "runs", "--episodes", "0"], "episodes must be at least 1"),
            (["train", "--episodes", "0"], "episodes must be at least 1"),
            (["train", "--algorithm", "sac"], "algorithm must be one of ppo, a2c, ddpg, td3, got 'sac'"),
            (["train", "--device", "cpu", "--params", "grvity", "3"], "did you mean 'gravity'?"),
            (["train", "--device", "cpu", "--evaluate-params", "grvity", "3"], "did you mean 'gravity'?"),
            (["train", "--env", "Blackjack-v1"], "is an environment of Gymnasium, not of gpuvec: `gpuvec envs` lists those"),
            (["train", "--population", "2", "--env", "CartPol-v1"], "did you mean gpuvec/CartPole-v1?"),
            (["eval", "no/such/run"], "there is no policy"),
        ],
    )
    def test_an_error_is_explained_in_one_line(
        self, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        runs = ["--runs", str(tmp_path / "runs")] if arguments[0] == "train" else []
        assert main([*arguments, *runs]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert error.startswith("gpuvec: ")
        assert not (tmp_path / "runs").exists()

    def test_a_setting_out_of_range_names_the_allowed_range(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "--gamma", "1.5"]) == 2
        assert "gamma must be from 0 to 1" in capsys.readouterr().err

    def test_a_file_that_is_no_checkpoint_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoint-1.pt").write_bytes(b"nothing of the sort")
        with pytest.raises(StateError, match="cannot be read as a checkpoint"):
            load(tmp_path)

    def test_a_checkpoint_of_an_unknown_algorithm_is_refused(self, tmp_path: Path) -> None:
        torch.save({"format": FORMAT, "args": {"all": {"algorithm": "sac"}}, "env": {}}, tmp_path / "checkpoint-1.pt")
        with pytest.raises(StateError, match=r"is of the algorithm 'sac'; this version has ppo, a2c, ddpg, td3\."):
            load(tmp_path)

    def test_a_checkpoint_that_would_run_code_is_refused(self, tmp_path: Path) -> None:
        import torch

        class Trap:
            def __reduce__(self) -> Any:
                return (Path.touch, (tmp_path / "sprung",))

        torch.save({"args": {}, "network": Trap()}, tmp_path / "checkpoint-1.pt")
        with pytest.raises(StateError, match="cannot be read"):
            load(tmp_path)
        assert not (tmp_path / "sprung").exists()


class TestRunFolder:
    def test_runs_of_the_same_second_have_separate_folders(self, tmp_path: Path) -> None:
        runs = [RunWriter.new(tmp_path, "ppo", {"env": "a/B-v0", "seed": 1}) for _ in range(3)]
        for run in runs:
            run.close()
        assert len({run.path for run in runs}) == 3

    def test_a_failed_write_keeps_the_previous_checkpoint(self, tmp_path: Path) -> None:
        run = RunWriter.new(tmp_path, "ppo", {"env": "a/B-v0", "seed": 1})
        good = {"args": {}, "env": {}, "policies": {}, "iteration": 1, "format": FORMAT}
        path = run.save(good)
        with pytest.raises(Exception, match="pickle"):
            run.save({**good, "policies": lambda: None})
        run.close()
        assert torch.load(path, weights_only=True) == good
        assert not [file.name for file in run.path.iterdir() if "part" in file.name]


class TestRuns:
    def test_lists_runs_with_their_results(self, training_run: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
        folder, printed = training_run
        (folder.parent / "notes.txt").write_text("no run")
        assert main(["runs", str(folder.parent)]) == 0
        header, row = capsys.readouterr().out.splitlines()
        assert header.split()[:4] == ["run", "environment", "algorithm", "seed"]
        cells = row.split()
        assert cells[:5] == [folder.name, "gpuvec/CartPole-v1", "ppo", "5", "3/3"]
        assert f"mean return {cells[5]} over" in printed
        assert cells[-1] == "complete"

    def test_states_and_progress_of_runs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        args = {"env": "a/B-v0", "seed": 1, "num_envs": 4, "num_steps": 8, "total_steps": 65}
        run = RunWriter.new(tmp_path, "ppo", args)
        run.log({"iteration": 1.0, "last_return": 7.0, "return": 9.0})  # the latter of the short episodes alone
        run.log({"iteration": 2.0, "last_return": float("nan"), "return": 9.0})

        def state() -> list[str]:
            assert main(["runs", str(tmp_path)]) == 0
            cells = capsys.readouterr().out.splitlines()[-1].split()
            return [*cells[4:6], cells[-1]]

        assert state() == ["2/3", "7.0", "running"]
        run.close()
        assert state() == ["2/3", "7.0", "stopped"]
        with RunFolder(run.path) as folder:
            folder.write("result.json", b'{"mean_return": 9.5}')
        assert state() == ["2/3", "9.5", "complete"]
        (run.path / "metrics.jsonl").write_bytes(b"[" * 100_000 + b"\n\xff\n[1]\n")
        (run.path / "args.json").write_text("[" * 100_000)
        (run.path / "result.json").write_text("")
        assert state() == ["0/?", "none", "damaged"]

    def test_a_folder_without_runs_is_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["runs", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"no runs in {tmp_path}\n"
        assert main(["runs", str(tmp_path / "nothing")]) == 1
        assert "there is no folder" in capsys.readouterr().err


def test_help_does_not_import_large_packages() -> None:
    code = (
        "import sys\nfrom gpuvec.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "large = {'torch', 'numba', 'cupy', 'rich', 'matplotlib', 'plotly'} & sys.modules.keys()\nassert not large, large\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    for option in ("--env", "--num-envs", "--target-return", "--compile"):
        assert option in process.stdout


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], ["128 on a CPU, 4096 on a GPU", "262144 on a CPU, 8388608 on a GPU", "the environment's own", "no limit"]),
        (["--device", "cpu"], ["(default: 128)", "(default: 262144)"]),
        (["--env", "gpuvec/MountainCar-v0", "--device", "cpu"], ["low -1.2 high 0.45", "(default: 4194304)"]),
        (["--env", "gpuvec/Pendulum-v1", "--algorithm", "ddpg"], ["(default: 64)", "(default: 409600)"]),
    ],
)
def test_help_shows_effective_defaults(
    arguments: list[str], values: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # a line of several columns would have parts of several options
    with pytest.raises(SystemExit) as exit_info:
        main(["train", *arguments, "--help"])
    assert not exit_info.value.code
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "None)" not in printed
    for value in values:
        assert value in printed


def test_a_population_of_0_is_one_policy() -> None:
    """The settings that are tuned for populations have other learning rates and numbers of environments."""

    def args(*words: str) -> dict[str, Any]:
        call: Any = parse_command("train", ["CartPole-v1", "--device", "cpu", *words])
        return asdict(call.keywords["settings"].args)

    assert args("--population", "0") == args() != args("--population", "4")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert not exit_info.value.code
    printed = capsys.readouterr().out
    assert all(
        command in printed
        for command in ("train", "eval", "runs", "plot", "compare", "envs", "check", "new-env", "doctor", "bench")
    )


def test_a_wrong_variable_of_torchrun_is_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("RANK", "one"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    assert main(["--version"]) == 1
    assert capsys.readouterr().err == "gpuvec: the environment variable RANK must be a number, got 'one'.\n"
