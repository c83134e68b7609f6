"""Training runs that are killed, interrupted or not finite: checkpoints, resuming, and where metrics are written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gymnasium.spaces import Box, Discrete

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec import SingleAgentEnv, register, uniform
from gpuvec.cli import main
from gpuvec.errors import ActionError, NonFiniteError, StateError
from gpuvec.learners.algorithms import ALGORITHMS, args_class, args_from_dict
from gpuvec.learners.cuda_graphs.guard import Guard
from gpuvec.learners.runs import sinks
from gpuvec.learners.runs.checkpoint import list_checkpoints, load, sort_checkpoint_names
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.training import train

SMALL = ["--num-envs", "8", "--num-steps", "16", "--episodes", "1", "--hidden", "16", "--normalize"]
ENVS = dict.fromkeys(ALGORITHMS, "gpuvec/CartPole-v1") | dict.fromkeys(("ddpg", "td3"), "gpuvec/Pendulum-v1")
REPLAY = ["--buffer-size", "4000", "--batch-size", "32", "--gradient-steps", "2", "--learning-starts", "256"]
MORE = {algorithm: [] for algorithm in ALGORITHMS} | {
    "ppo": ["--normalize-returns"],
    "a2c": ["--reward-scale", "0.5"],
    "ddpg": REPLAY,
    "td3": REPLAY,
}
TIMES = ("seconds", "steps_per_second", "gpu_memory")


def command(algorithm: str, runs: Path, device: str = "cpu", iterations: int = 100) -> list[str]:
    arguments = ["train", "--algorithm", algorithm, "--env", ENVS[algorithm], "--device", device, "--runs", str(runs)]
    return [*arguments, "--total-steps", str(128 * iterations), *SMALL, *MORE[algorithm]]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def assert_same(a: Any, b: Any, path: str = "") -> None:
    if isinstance(a, Mapping):
        assert a.keys() == b.keys(), path
        for name in a.keys() - {"seconds"}:
            assert_same(a[name], b[name], f"{path}.{name}")
    elif isinstance(a, torch.Tensor):
        integer_type = {torch.float32: torch.int32, torch.float64: torch.int64}.get(a.dtype, a.dtype)
        assert torch.equal(a.view(integer_type), b.view(integer_type)), path
    else:
        assert a == b, path


# Kills its own process once 57 iterations are logged, as a loss of power would.
KILLED = """
import os, signal, sys
from gpuvec.learners.runs import sinks
log = sinks.JsonLines.log
def last(self, metrics):
    log(self, metrics)
    if metrics["iteration"] == 57:
        os.kill(os.getpid(), signal.SIGKILL)
sinks.JsonLines.log = last
from gpuvec.cli import main
main(sys.argv[1:])
"""


def test_checkpoints_are_sorted_by_their_numbers() -> None:
    names = ["checkpoint-10.pt", "checkpoint-9.pt", "checkpoint-100.pt", "checkpoint-10.part", "result.json"]
    assert sort_checkpoint_names(names) == ["checkpoint-9.pt", "checkpoint-10.pt", "checkpoint-100.pt"]


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    "algorithm",
    # A2C stores and restores what PPO does.
    [pytest.param(name, marks=pytest.mark.slow if name == "a2c" else ()) for name in ALGORITHMS],
)
def test_a_killed_run_resumes_as_if_uninterrupted(device: str, algorithm: str, tmp_path: Path) -> None:
    for where in ("whole", "killed"):
        arguments = command(algorithm, tmp_path / where, device)
        if where == "whole":
            assert main(arguments) == 0
        else:
            done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr
    (whole,), (killed,) = ((tmp_path / where).iterdir() for where in ("whole", "killed"))
    assert [path.name for path in list_checkpoints(killed)] == ["checkpoint-50.pt"]
    assert len(rows_of(killed)) == 57
    assert main(["resume", str(killed), "--episodes", "1"]) == 0
    assert [path.name for path in list_checkpoints(killed)] == ["checkpoint-50.pt", "checkpoint-100.pt"]
    assert_same(load(killed), load(whole))
    assert rows_of(killed) == rows_of(whole)


def test_the_last_two_checkpoints_remain(tmp_path: Path) -> None:
    assert main([*command("ppo", tmp_path, iterations=7), "--checkpoint-every", "2"]) == 0
    (run,) = tmp_path.iterdir()
    assert [path.name for path in list_checkpoints(run)] == ["checkpoint-6.pt", "checkpoint-7.pt"]
    newest = list_checkpoints(run)[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.raises(StateError, match=r"checkpoint-7.pt cannot be read .* The previous checkpoint is .*checkpoint-6.pt"):
        load(run)
    assert load(list_checkpoints(run)[0])["iteration"] == 6


class TestResume:
    def test_a_complete_run_continues_with_more_steps(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(command("ppo", tmp_path, iterations=3)) == 0
        (run,) = tmp_path.iterdir()
        assert main(["resume", str(run)]) == 1
        assert "is complete, with 3 iterations: give a larger --total-steps" in capsys.readouterr().err
        assert main(["resume", str(run), "--total-steps", str(5 * 128), "--episodes", "1"]) == 0
        assert [row["iteration"] for row in rows_of(run)] == [1, 2, 3, 4, 5]

    def test_versions_that_changed_are_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(command("ppo", tmp_path, iterations=3)) == 0
        (run,) = tmp_path.iterdir()
        versions = json.loads((run / "versions.json").read_text())
        (run / "versions.json").write_text(json.dumps({**versions, "numpy": "1.0"}))
        assert main(["resume", str(run), "--total-steps", str(4 * 128), "--episodes", "1"]) == 0
        assert f"numpy was 1.0 and is {versions['numpy']} now" in capsys.readouterr().out

    def test_a_folder_without_a_run_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["resume", str(tmp_path)]) == 1
        assert "is not a run folder" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"format": 0}, r"has the format 0; this gpuvec reads \d+"),
            ({"args": {"all": {"algorithm": "sac"}}}, "of the algorithm 'sac'; this version has ppo"),
        ],
    )
    def test_a_checkpoint_of_another_version_is_refused(self, tmp_path: Path, change: dict[str, Any], words: str) -> None:
        assert main(command("ppo", tmp_path, iterations=2)) == 0
        (run,) = tmp_path.iterdir()
        torch.save({**load(run), **change}, run / "checkpoint-3.pt")
        with pytest.raises(StateError, match=words):
            load(run)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"env": "gpuvec/Acrobot-v1"}, r"is of gpuvec/CartPole-v1; it cannot continue in gpuvec/Acrobot-v1"),
            ({"num_envs": 4}, "4"),
            ({"hidden": (8,)}, "must have shape"),
        ],
    )
    def test_a_checkpoint_of_another_training_is_refused(self, tmp_path: Path, change: dict[str, Any], words: str) -> None:
        assert main(command("ppo", tmp_path, iterations=2)) == 0
        (run,) = tmp_path.iterdir()
        checkpoint = load(run)
        args = args_from_dict({**checkpoint["args"]["all"], "total_steps": 5 * 128, **change})
        with pytest.raises(StateError, match=words):
            train(args, checkpoint=checkpoint)


# Sends itself SIGINT or SIGTERM during the fifth iteration.
INTERRUPTED = """
import os, signal, sys
from gpuvec.learners.on_policy import OnPolicy
estimate, calls = OnPolicy.estimate, []
def interrupted(self):
    calls.append(1)
    if len(calls) == 5:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    estimate(self)
OnPolicy.estimate = interrupted
from gpuvec.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_the_iteration_and_saves(sent: str, tmp_path: Path) -> None:
    arguments = command("ppo", tmp_path, iterations=20)
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, sent, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + getattr(signal, sent), done.stderr
    (run,) = tmp_path.iterdir()
    assert done.stdout.splitlines()[-1] == f"stopped    after 5 of 20 iterations; to continue: gpuvec resume {run}"
    assert load(run)["iteration"] == 5
    assert main(["resume", str(run), "--episodes", "1"]) == 0
    assert main(command("ppo", tmp_path / "whole", iterations=20)) == 0
    (whole,) = (tmp_path / "whole").iterdir()
    assert_same(load(run), load(whole))


class Clock(NamedTuple):
    time: int
    late: bool


class NoParams(NamedTuple):
    pass


# Some of the rows have a reward of nan from the 40th step on.
SPOILT = SingleAgentEnv(
    state=Clock,
    params=NoParams(),
    reset=lambda key, p: Clock(0, uniform(key, 0, 0.0, 1.0) < 0.4),
    step=lambda s, action, key, p: (Clock(s.time + 1, s.late), float("nan") if s.late and s.time >= 39 else 1.0, False),
    observe=lambda s, p: (1.0 if s.late else 0.0,),
    spaces=lambda p: (Box(-1.0, 1.0, (1,)), Discrete(2)),
)
register("tests/Spoilt-v0", SPOILT)


class TestNumbersThatAreNotFinite:
    def test_training_stops_and_names_part_iteration_and_row(self, device: str) -> None:
        import gymnasium as gym

        env = gym.make_vec("tests/Spoilt-v0", 8, device="cpu", output="numpy")
        obs, _ = env.reset(seed=3)
        row = int(obs[:, 0].argmax())
        assert 0 < row < 8
        args = args_class("ppo")(env="tests/Spoilt-v0", device=device, num_envs=8, num_steps=16, total_steps=5000, seed=3)
        reported_iterations: list[float] = []
        with pytest.raises(
            NonFiniteError, match=rf"a reward is not finite: detected by collect in iteration 3, row {row} of tests/"
        ):
            train(args, lambda learner, metrics: reported_iterations.append(metrics["iteration"]))
        assert reported_iterations == [1, 2]

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_parameter_that_is_not_finite_is_detected(self, device: str, algorithm: str) -> None:
        env: dict[str, Any] = {"env": ENVS[algorithm], "device": device, "num_envs": 8, "num_steps": 16, "total_steps": 5000}
        has_replay = algorithm in ("ddpg", "td3")
        args = args_class(algorithm)(**env, **({"learning_starts": 0} if has_replay else {}))

        def corrupt_weight(learner: Any, metrics: dict[str, float]) -> None:
            if metrics["iteration"] == 4:
                with torch.no_grad():
                    part = learner.policy.network.critics[0].layers if has_replay else learner.policy.network.body.critic
                    part[0].weight[0, 0] = torch.inf

        words = "detected by improve" if has_replay else "detected by (estimate|improve)"
        with pytest.raises(NonFiniteError, match=rf"is not finite: {words} in iteration 5"):
            train(args, corrupt_weight)

    def test_the_last_checkpoint_remains(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["train", "--env", "tests/Spoilt-v0", "--device", "cpu", "--seed", "3", "--runs", str(tmp_path), *SMALL]
        assert main([*arguments, "--total-steps", "5000", "--checkpoint-every", "1"]) == 1
        (run,) = tmp_path.iterdir()
        assert f"The previous checkpoint is {run}/checkpoint-2.pt." in capsys.readouterr().err
        assert load(run)["iteration"] == 2

    def test_the_error_names_the_agent(self) -> None:
        guard = Guard({"collect": ("a reward", "an action")}, {"improve": ("the loss",)}, "cpu")
        values = torch.ones(4, 6, 2)
        guard.check_rows_finite("collect", values[..., 0], values)
        guard.check_finite("improve", values)
        guard.raise_fault(guard.fault_rows.tolist(), 1, "a/B-v0", 3)
        values[2, 5, 1] = torch.nan
        guard.check_rows_finite("collect", values[..., 0], values)
        guard.check_finite("improve", values)
        with pytest.raises(
            NonFiniteError, match=r"an action is not finite: detected by collect in iteration 7, row 1, agent 2, of a/B"
        ):
            guard.raise_fault(guard.fault_rows.tolist(), 7, "a/B-v0", 3)


class Masked(torch.nn.Module):
    """Forbids all actions once the cart has moved to the right."""

    def __init__(self, observations: Any, actions: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def policy(self, obs: Any) -> Any:
        return self.layer(obs)

    def value(self, obs: Any) -> Any:
        return obs[..., 0]

    def allowed(self, obs: Any) -> Any:
        return (obs[..., :1] <= 0.04).expand(*obs.shape[:-1], 2)


def test_a_mask_that_allows_nothing_stops_training(device: str) -> None:
    args = args_class("ppo")(device=device, num_envs=8, num_steps=16, total_steps=5000, hidden=(8,))
    with pytest.raises(ActionError, match=r"all actions are forbidden: in iteration 1, row \d of gpuvec/CartPole"):
        train(args, body=Masked)


def test_lines_after_the_checkpoint_are_removed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2}\n{"iteration": 3}\n{"itera')
    log = sinks.JsonLines(RunFolder(tmp_path), 2)
    log.log({"iteration": 3, "return": float("nan")})
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text()
    assert lines == '{"iteration": 1}\n{"iteration": 2}\n{"iteration": 3, "return": null}\n'
