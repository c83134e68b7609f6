"""The policies that come with gpuvec: their files, their cards and their returns, and the tool that trains them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tyro")

from tests.support.random_policies import CASES
from tools import train_policies
from tools.policy_card import Record, combine_curves, differences, interval_over_seeds, read_card, write_card
from tools.train_policies import TASKS, median_seed

import gpuvec
from gpuvec.cli import main
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import policies_by_role
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy
from gpuvec.policies import model_card, policy_names, policy_path

# ---- files and cards


def test_cartpole_comes_with_gpuvec() -> None:
    assert "CartPole-v1" in policy_names()


@pytest.mark.parametrize("name", policy_names())
def test_a_card_describes_its_file(name: str) -> None:
    record, task, policy = read_card(model_card(name)), TASKS[name], gpuvec.load_policy(name)
    assert hashlib.sha256(policy_path(name).read_bytes()).hexdigest() == record.sha256
    assert (record.name, record.env, record.params) == (name, policy.env, policy.params)
    assert (record.env, record.params) == (f"gpuvec/{task.env}", task.file_params())
    assert (record.goal, record.demo) == (task.goal, dict(task.demo))
    assert record.random_returns.keys() == record.returns.keys()
    assert {args.seed for args in policy.args.values()} == {record.seed}
    assert set(policy.args) <= {*record.returns, "all"}
    assert model_card(name) == write_card(record)


def test_cartpole_balances_the_pole() -> None:
    policy = gpuvec.load_policy("CartPole-v1")
    results = run_episodes(policy.env, policies_by_role(policy.networks), episodes=100, seed=77, device="cpu")
    assert results.returns.mean() >= 475.0


def test_eval_takes_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "CartPole-v1", "--device", "cpu", "--episodes", "20"]) == 0
    assert "gpuvec/CartPole-v1: mean return " in capsys.readouterr().out


def test_an_unknown_name_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"no policy 'CartPole-v2': give one that comes with gpuvec, .*CartPole-v1"):
        gpuvec.load_policy("CartPole-v2")
    assert main(["eval", "nonsense"]) == 1
    assert "there is no policy 'nonsense'" in capsys.readouterr().err


def test_a_name_comes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CartPole-v1").mkdir()
    assert gpuvec.load_policy("CartPole-v1").env == "gpuvec/CartPole-v1"
    with pytest.raises(FileNotFoundError, match="no checkpoint at CartPole-v1"):
        gpuvec.load_policy(Path("CartPole-v1"))


# ---- the tool


@pytest.mark.parametrize("name", TASKS)
def test_each_task_has_an_environment_and_settings(name: str) -> None:
    task = TASKS[name]
    args = task.args(3, "cpu")
    assert args.seed == 3
    assert args.params.items() >= task.file_params().items() >= dict(task.params).items()
    assert not {"low", "high"} & task.file_params().keys()
    command = f"gpuvec train --env gpuvec/{task.env} "
    call = (
        f'train(tuned("gpuvec/{task.env}", "cpu", seed=3, ent_coef_table=((0, 0.05), (1310720, 0.01))), opponent=win_or_block)'
    )
    assert (task.command(3, "cpu") == call) if task.has_opponent else task.command(3, "cpu").startswith(command)


def make_record(**changes: object) -> Record:
    return read_card(model_card("CartPole-v1"))._replace(**changes)


def test_a_card_is_read_as_it_was_written() -> None:
    random_returns = {"tagger": 0.5, "runner": 0.25}
    record = make_record(returns={"tagger": [1.0, 2.0], "runner": [-1.0, 0.5]}, seeds=[2, 3], random_returns=random_returns)
    assert read_card(write_card(record)) == record
    assert "| tagger | 1 | 1.5 ± 6.4 | 0.5 |" in write_card(record)
    with pytest.raises(ValueError, match="the card has no record"):
        read_card("# CartPole-v1")


def test_intervals_are_those_of_student() -> None:
    stats = pytest.importorskip("scipy.stats")
    for count in range(2, 11):
        values = [float(k * k) for k in range(count)]
        interval = interval_over_seeds(values)
        low, high = stats.t.interval(0.95, count - 1, sum(values) / count, stats.sem(values))
        assert interval.mean == pytest.approx((low + high) / 2)
        assert interval.half_width == pytest.approx((high - low) / 2, rel=1e-3)


def test_other_returns_are_reported() -> None:
    record = make_record(returns={"all": [480.0, 490.0, 500.0]})
    assert differences(record, {"all": [470.0, 485.0, 495.0]}) == []
    (line,) = differences(record, {"all": [300.0, 310.0, 305.0]})
    assert line.startswith("CartPole-v1, all: 305 ± ")


def test_a_curve_has_the_steps_of_all_seeds() -> None:
    rows = combine_curves([[(1, 2.0), (2, 4.0), (3, 6.0)], [(2, 8.0), (3, 0.0), (4, 1.0)]])
    assert rows == [[2, 6.0, 4.0, 8.0], [3, 3.0, 0.0, 6.0]]
    assert combine_curves([[], []]) == []


def test_the_tool_writes_and_verifies_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainings are replaced; those of the last seeds are worse."""
    content = TrainedPolicy(CASES["discrete"].contents()).to_bytes()
    values = {0: 30.0, 1: 10.0, 2: 20.0, 10: 21.0, 11: 19.0, 12: -100.0, 13: -101.0}

    def train_seed(task: object, seed: int, device: str) -> train_policies.TrainedSeed:
        return train_policies.TrainedSeed({"all": values[seed]}, [(128, values[seed])], content, 128)

    monkeypatch.setattr(train_policies, "train_seed", train_seed)
    monkeypatch.setattr(train_policies, "mean_returns", lambda *arguments: {"all": 20.0})
    task = TASKS["CartPole-v1"]
    assert median_seed({seed: train_seed(task, seed, "cpu") for seed in (0, 1, 2)}) == 2
    train_policies.write_policy(task, (0, 1, 2), "cpu", tmp_path)
    assert read_card((tmp_path / "CartPole-v1.md").read_text()).seed == 2
    assert train_policies.verify_policy(task, (10, 11), "cpu", tmp_path) == []
    (line,) = train_policies.verify_policy(task, (12, 13), "cpu", tmp_path)
    assert "in new trainings" in line
    monkeypatch.setattr(train_policies, "mean_returns", lambda *arguments: {"all": 5.0})
    (line,) = train_policies.verify_policy(task, (10, 11), "cpu", tmp_path)
    assert line == "CartPole-v1, all: the file has the return 5, and the card says 20"
    (tmp_path / "CartPole-v1.safetensors").write_bytes(TrainedPolicy(CASES["bf16"].contents()).to_bytes())
    lines = train_policies.verify_policy(task, (10, 11), "cpu", tmp_path)
    assert "is not the file of the card" in lines[0]
