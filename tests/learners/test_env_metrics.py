"""The metrics that an environment declares: in trainings, evaluations, run folders and wrappers, against loops over steps."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from tests.support import meadow_env

from gpuvec.cli import main
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.evaluation.players import at_random
from gpuvec.learners.fused_ppo.fused_policy import FusedPPO
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import make_learner
from gpuvec.vector.wrappers import FlattenAgents, RecordEpisodeStatistics

ENV = "tests/Meadow-v0"
E, T = 5, 16
NAMES = meadow_env.Metrics._fields


def make_meadow(**arguments: Any) -> Any:
    return gym.make_vec(ENV, E, device="cpu", output="torch", **{"autoreset_mode": "SameStep", **arguments})


def finished_metrics(infos: dict[str, Any], ended: Any) -> list[list[float]]:
    """Returns the metrics of the episodes that ended in a step, in the order of their rows."""
    return torch.stack([infos["metrics"][name][ended] for name in NAMES], -1).tolist()


@pytest.mark.parametrize("is_flat", [False, True])
def test_a_training_logs_means_over_the_episodes_that_ended(is_flat: bool) -> None:
    args = PPOArgs(env=ENV, device="cpu", num_envs=E, num_steps=T, hidden=(8,)).resolved("cpu")
    env = make_meadow()
    learner = make_learner(args, FlattenAgents(env) if is_flat else env)
    copy, num_ended = make_meadow(), []
    copy.reset(seed=args.seed)
    for _ in range(4):
        learner.iterate()
        metrics, finished = learner.read(), []
        for t in range(T):
            _, _, terminated, truncated, infos = copy.step(learner.policy.buffer.action[t].view(E, 3))
            finished += finished_metrics(infos, terminated | truncated)
        num_ended.append(len(finished))
        expected = np.mean(finished, 0) if finished else np.full(len(NAMES), np.nan)
        np.testing.assert_allclose([metrics[f"metrics/{name}"] for name in NAMES], expected, rtol=1e-6)
    assert learner.metric_names[-len(NAMES) :] == tuple(f"metrics/{name}" for name in NAMES)
    assert sum(num_ended) > E


def test_an_evaluation_returns_the_metrics_of_the_first_episodes() -> None:
    results = run_episodes(ENV, at_random(2), episodes=E, seed=3, device="cpu")
    env = gym.make_vec(ENV, E, device="cpu", output="torch")
    obs, infos = env.reset(seed=3)
    act, finished = at_random(2)(env), dict[int, list[float]]()
    while len(finished) < E:
        obs, _, terminated, truncated, infos = env.step(act(obs, infos["action_mask"]))
        for row in (terminated | truncated).nonzero().flatten().tolist():
            finished.setdefault(row, [float(infos["metrics"][name][row]) for name in NAMES])
    expected = [finished[row] for row in range(E)]
    assert torch.stack([results.metrics[name] for name in NAMES], -1).tolist() == expected


@pytest.mark.parametrize("is_flat", [False, True])
def test_statistics_of_episodes_contain_the_metrics(is_flat: bool) -> None:
    env = make_meadow(autoreset_mode="NextStep", reward="agents" if is_flat else "sum")
    recorded = RecordEpisodeStatistics(FlattenAgents(env) if is_flat else env, ring=7)
    recorded.reset(seed=1)
    finished: list[list[float]] = []
    for _ in range(60):
        actions = torch.zeros(E, 3, dtype=torch.int64)
        infos = recorded.step(actions.flatten() if is_flat else actions)[-1]
        ended = infos["_episode"].view(E, -1)
        finished += [row for row in finished_metrics(infos, ended[:, 0]) for _ in range(ended.shape[1])]
    statistics = recorded.statistics()
    assert statistics.episodes == len(finished) > 14
    np.testing.assert_array_equal(np.stack([statistics.metrics[name] for name in NAMES], -1), finished[-7:])


def test_the_command_line_prints_and_stores_metrics(tmp_path, capsys) -> None:
    env = f"tests.support.meadow_env:{ENV}"
    small = ["--num-envs", "4", "--num-steps", "32", "--total-steps", "256", "--hidden", "8", "--episodes", "3"]
    assert main(["train", "--env", env, "--device", "cpu", *small, "--runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    (run,) = tmp_path.iterdir()
    *_, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert f"  grass {last['metrics/grass']:.4g}  " in printed
    mean = json.loads((run / "result.json").read_text())["metrics/warmest"]
    line = f"metric     warmest {mean:.4g} on average (lowest "
    assert line in printed
    assert main(["eval", str(run), "--episodes", "3", "--seed", "1", "--device", "cpu"]) == 0
    assert line in capsys.readouterr().out


def test_fused_rollouts_leave_out_environments_whose_threads_share_an_environment() -> None:
    env = gym.make_vec("gpuvec/Breakout-v0", 2, device="cpu", output="torch", autoreset_mode="SameStep")
    policy = SimpleNamespace(fused_update=SimpleNamespace(shape=None))
    assert FusedPPO.fused_rollout(policy, EnvRollout(env, 2, "cpu")) is None
