"""`train(run_folder=...)`: the run folder of a training from Python, which the commands take as one of their own."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main  # imported after torch, which it needs
from gpuvec.errors import RunInUseError, StateError
from gpuvec.learners.a2c import A2CArgs
from gpuvec.learners.environments import resolve_args
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.runs.checkpoint import list_checkpoints, load
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.history import read_histories
from gpuvec.learners.runs.run_writer import record_run
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.torchrun import Sharding
from gpuvec.learners.training import train

ARGS = A2CArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=4, num_steps=8, num_iterations=6, hidden=(8,), anneal_lr=False, seed=3,
    params={"max_episode_steps": 9},
)  # fmt: skip
LONGER = replace(ARGS, num_iterations=9)


class OwnBody(torch.nn.Module):
    """A body that the settings do not describe: one layer with logits and the value."""

    def __init__(self, observations: Any, actions: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(observations.shape[0], int(actions.n) + 1)

    def policy(self, obs: torch.Tensor) -> Any:
        return self.layer(obs)[..., 1:]

    def value(self, obs: torch.Tensor) -> Any:
        return self.layer(obs)[..., 0]


def weights(checkpoint: dict[str, Any]) -> dict[str, bytes]:
    """Returns the parameters of the policy, as bytes."""
    return {name: x.numpy().tobytes() for name, x in checkpoint["policies"]["all"]["network"].items()}


def test_the_folder_is_that_of_a_run_for_all_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs" / "mine"
    result = train(ARGS, run_folder=path, checkpoint_every=2)
    assert weights(load(path)) == weights(result.checkpoint) == weights(train(ARGS).checkpoint)
    assert [checkpoint.stem for checkpoint in list_checkpoints(path)] == ["checkpoint-4", "checkpoint-6"]
    assert {"args.json", "versions.json", "metrics.jsonl", "result.json"} <= {entry.name for entry in path.iterdir()}
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["return"] for line in lines] == [row["return"] if row["episodes"] else None for row in result.history]
    assert main(["runs", str(path.parent)]) == 0
    assert re.search(r"mine +gpuvec/CartPole-v1 +a2c +3 +6/6 +\d.* complete", capsys.readouterr().out)
    assert main(["eval", str(path), "--episodes", "2", "--device", "cpu"]) == 0
    histories, messages = read_histories([path], "return")
    assert (messages, histories[0].algorithm) == ([], "a2c")
    assert main(["resume", str(path), "--total-steps", "256", "--episodes", "2"]) == 0
    assert load(path)["iteration"] == 8
    assert json.loads((path / "args.json").read_text())["algorithm"] == "a2c"


def test_a_run_continues_with_the_same_settings_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(ARGS, run_folder=path)
    continued = train(LONGER, run_folder=path)
    assert weights(continued.checkpoint) == weights(train(LONGER).checkpoint)
    assert len((path / "metrics.jsonl").read_text().splitlines()) == 9
    with pytest.raises(StateError, match=r"run is complete, with 9 iterations: give a larger total_steps"):
        train(LONGER, run_folder=path)
    longer = replace(LONGER, num_iterations=12)
    for other, message in (
        (replace(longer, gamma=0.5), r"is a run with gamma=0.99, and this training has 0.5"),
        (replace(longer, env="gpuvec/Acrobot-v1"), r'is a run with env="gpuvec/CartPole-v1"'),
        (PPOArgs(env=ARGS.env, device="cpu", num_envs=4, num_steps=8), r'is a run with algorithm="a2c", and this training'),
    ):
        with pytest.raises(StateError, match=message):
            train(other, run_folder=path)
    with pytest.raises(ValueError, match="is not a run folder, and not empty"):
        train(ARGS, run_folder=tmp_path)
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1, got 0"):
        train(ARGS, run_folder=tmp_path / "new", checkpoint_every=0)
    with RunFolder(path) as folder:
        folder.lock()
        with pytest.raises(RunInUseError):
            train(longer, run_folder=path)
    assert load(path)["iteration"] == 9
    assert not (tmp_path / "new").exists()


def test_a_run_that_reached_its_target_is_complete(tmp_path: Path) -> None:
    args = replace(ARGS, target_return=1.0, evaluate_every=2, evaluate_episodes=2)
    assert train(args, run_folder=tmp_path / "run").ended_by == "target_return"
    for again in (args, replace(args, num_iterations=9)):
        with pytest.raises(StateError, match="run is complete, since it reached its target_return: give another folder"):
            train(again, run_folder=tmp_path / "run")
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.parametrize("checkpoint_every", [1, 100])
def test_a_script_that_begins_with_a_checkpoint_is_repeated_after_it_was_killed(checkpoint_every: int, tmp_path: Path) -> None:
    path, begin = tmp_path / "run", train(ARGS).checkpoint

    def fail(learner: Any, metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 8:
            raise OSError("the machine is lost")

    def script(on_iteration: Any = None) -> Any:
        return train(LONGER, on_iteration, begin, run_folder=path, checkpoint_every=checkpoint_every)

    with pytest.raises(OSError, match="lost"):
        script(fail)
    assert [each.stem for each in list_checkpoints(path)] == (["checkpoint-7"] if checkpoint_every == 1 else [])
    repeated = script()
    assert [row["iteration"] for row in repeated.history] == [*range(8 if checkpoint_every == 1 else 7, 10)]
    assert weights(repeated.checkpoint) == weights(train(LONGER).checkpoint)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [7, 8, 9]
    with pytest.raises(StateError, match="run is complete, with 9 iterations"):
        script()


def test_a_run_does_not_continue_in_place_of_a_later_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(ARGS, run_folder=path)
    before = contents(path)
    with pytest.raises(StateError, match=r"6 iterations, which did not begin with the given checkpoint of iteration 9"):
        train(replace(LONGER, num_iterations=12), checkpoint=train(LONGER).checkpoint, run_folder=path)
    assert contents(path) == before


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_the_iteration_and_the_run_continues(number: int, error: type[BaseException], tmp_path: Path) -> None:
    path, handler = tmp_path / "run", signal.getsignal(number)

    def interrupt(learner: Any, metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(error):
        train(ARGS, interrupt, run_folder=path)
    assert signal.getsignal(number) == handler
    assert load(path)["iteration"] == 2
    assert not (path / "result.json").exists()
    assert weights(train(ARGS, run_folder=path).checkpoint) == weights(train(ARGS).checkpoint)


def test_a_training_that_stops_itself_can_continue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    result = train(ARGS, lambda learner, metrics: metrics["iteration"] == 3, run_folder=path, checkpoint_every=100)
    assert (result.ended_by, load(path)["iteration"]) == ("on_iteration", 3)
    assert main(["runs", str(tmp_path)]) == 0
    assert "stopped" in capsys.readouterr().out
    assert weights(train(ARGS, run_folder=path).checkpoint) == weights(train(ARGS).checkpoint)


def test_a_body_is_passed_again(tmp_path: Path) -> None:
    path = tmp_path / "run"
    result = train(ARGS, body=OwnBody, run_folder=path)
    assert json.loads((path / "args.json").read_text())["network"] == f"{__name__}:OwnBody"
    with pytest.raises(StateError, match=r"is a run with network=.*OwnBody.*, and this training has null"):
        train(LONGER, run_folder=path)
    continued = train(LONGER, body=OwnBody, run_folder=path)
    assert weights(continued.checkpoint) == weights(train(LONGER, body=OwnBody).checkpoint)
    assert weights(result.checkpoint) != weights(continued.checkpoint)


@pytest.mark.parametrize("is_running", [True, False])
def test_of_two_trainings_that_begin_a_folder_the_second_changes_nothing(is_running: bool, tmp_path: Path) -> None:
    """Neither finds a run there, and the first one trains, or has ended, when the second one has compiled."""
    path = tmp_path / "run"
    config = {"all": resolve_args(ARGS, "cpu")}
    with ExitStack() as stack:
        second, _ = stack.enter_context(record_run(path, config, {}, None, 2, Sharding(), Processes()))
        train(ARGS, run_folder=path)
        if is_running:
            stack.enter_context(RunFolder(path)).lock()
        before = contents(path)
        with pytest.raises(RunInUseError, match=r"run is in use" if is_running else r"another training began a run in .*run"):
            second.open()
    assert contents(path) == before


def contents(path: Path) -> dict[str, bytes]:
    """Returns {name: bytes} of the files in a folder."""
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


def test_a_run_that_was_killed_while_it_began_can_begin_again(tmp_path: Path) -> None:
    """The names are those of the files that a run has before args.json, complete or not."""
    names = ["lock", "versions.json", "metrics.jsonl"]
    for number in range(len(names) + 1):
        for part in ("", *(f".{name}.{'0a' * 8}.part" for name in (*names, "args.json"))):
            path = tmp_path / f"{number}{part}"
            path.mkdir()
            for name in filter(None, (*names[:number], part)):
                (path / name).touch()
            with record_run(path, {"all": resolve_args(ARGS, "cpu")}, {}, None, 2, Sharding(), Processes()) as (recorder, _):
                recorder.open()
            assert sorted(entry.name for entry in path.iterdir()) == ["args.json", "lock", "metrics.jsonl", "versions.json"]
    (path / "args.json").rename(path / "thesis.txt")
    before = contents(path)
    with pytest.raises(ValueError, match="is not a run folder, and not empty"):
        train(ARGS, run_folder=path)
    assert contents(path) == before


def test_settings_that_cannot_be_used_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_envs"):
        train(ARGS, run_folder=tmp_path / "run", shards=3)
    assert not (tmp_path / "run").exists()
