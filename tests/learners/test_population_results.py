"""The result of a population: its numbers, its policies as ordinary checkpoints, and its folder."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpuvec.errors import StateError  # imported after torch, which it needs
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.evaluation.evaluate import evaluate, load_policy
from gpuvec.learners.histories import read_histories
from gpuvec.learners.population import population_training
from gpuvec.learners.population.batched.batched_population import BatchedPopulation
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.population.population_training import train_population
from gpuvec.learners.population.results.population_folder import load_population, save_population
from gpuvec.learners.population.results.population_history import PopulationHistory, read_history
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.runs.checkpoint import load
from gpuvec.learners.runs.comparison import compare_groups
from gpuvec.learners.runs.groups import group_runs
from gpuvec.learners.runs.npz_files import NpzReader, to_npz
from gpuvec.learners.runs.seed_statistics import bootstrap_interval
from gpuvec.learners.training import train

BASE = PPOArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=3, num_steps=16, num_iterations=6, num_minibatches=3, hidden=(16, 8),
    params={"max_episode_steps": 5},
)  # fmt: skip
ARGS = PopulationArgs(BASE, 3, settings={"learning_rate": (1e-3, 1e-2, 1e-4), "gamma": (0.9, 0.99, 0.5)})


@cache
def trained() -> PopulationResult:
    return train_population(ARGS)


def history(returns: Any, stopped_at: Any = None) -> PopulationHistory:
    """Returns a history with these returns, (I, P)."""
    returns = np.array(returns, np.float32)
    iterations, agents = returns.shape
    stopped_at = np.full(agents, -1) if stopped_at is None else np.array(stopped_at)
    names = trained().history.metrics
    metrics = {name: np.full_like(returns, np.nan) for name in names} | {"eval_return": returns}
    steps = 10 * np.arange(1, iterations + 1)
    return PopulationHistory(steps, steps / 100, metrics, np.arange(agents), {}, {}, stopped_at, np.where(stopped_at < 0, 0, 3))


def test_the_final_return_is_that_of_the_last_evaluation() -> None:
    returns = np.full((20, 3), np.nan)
    returns[[9, 19]] = [[9.0, 2.0, 3.0], [1.0, 7.0, 4.0]]
    result = history(returns, stopped_at=[-1, -1, 20])
    result.metrics["return"][:] = 100.0  # of the short ones alone
    np.testing.assert_array_equal(result.final_returns(), [1.0, 7.0, np.nan])
    assert result.ranking() == [1, 0, 2]
    assert result.fault_texts() == ["agent 2 was stopped in iteration 20: the gradient was not finite."]


def test_without_an_evaluation_final_returns_are_those_of_environments_that_have_all_ended_an_episode() -> None:
    nan = np.nan
    result = history(np.full((20, 4), nan))
    result.metrics["last_return"][-2:] = [[1.0, 50.0, 60.0, nan], [3.0, 6.0, 60.0, nan]]
    result.metrics["last_return_share"][-2:] = [[1.0, 0.5, 0.5, 0.0], [1.0, 1.0, 0.75, 0.0]]
    np.testing.assert_array_equal(result.final_returns(), [2.0, 6.0, nan, nan])


def test_steps_to_a_threshold_are_those_before_the_first_evaluation_that_reached_it() -> None:
    returns = np.full((6, 3), np.nan)
    returns[[1, 3, 5]] = [[1.0, 5.0, 1.0], [5.0, 4.0, 1.0], [6.0, 7.0, 4.9]]
    result = history(returns)
    result.metrics["last_return"][:] = 100.0
    np.testing.assert_array_equal(result.steps_to(5.0), [40, 20, np.nan])
    assert np.isnan(result.steps_to(np.nan)).all()


def test_the_history_has_the_numbers_of_each_launch() -> None:
    launches: list[Any] = []
    result = train_population(ARGS, lambda population, results: launches.append(results), iterations_per_launch=4)
    assert [len(results) for results in launches] == [4, 2]
    for m, name in enumerate(METRICS):
        np.testing.assert_array_equal(result.history.metrics[name], np.concatenate(launches)[:, m])
    assert result.history.steps.tolist() == [48 * i for i in range(1, 7)]
    assert (np.diff(result.history.seconds) > 0).all()
    for name, column in result.history.metrics.items():  # one iteration in a launch gives the same
        np.testing.assert_array_equal(column, trained().history.metrics[name])


def test_a_policy_is_the_network_of_its_agent_and_so_is_its_checkpoint(tmp_path: Path) -> None:
    result = trained()
    network = result.policy(1)
    for name, p in network.named_parameters():
        assert torch.equal(p, result.state["tensors"]["parameters"][name][1])
    path = save_population(tmp_path, result, num_best=2)
    folders = sorted(path.glob("best-*"))
    assert [folder.name for folder in folders] == [
        f"best-{i}__ppo__{result.args.seeds[k]}" for i, k in enumerate(result.best(2), 1)
    ]
    k = result.best(2)[0]
    settings_of_agent, loaded = load_policy(load(folders[0]), "cpu")
    settings: Any = {"episodes": 4, "seed": 3, "device": "cpu", "params": BASE.params}
    assert settings_of_agent == result.args.agent(k)
    assert torch.equal(evaluate(loaded, BASE.env, **settings), evaluate(result.policy(k), BASE.env, **settings))
    histories, messages = read_histories([folders[0]], "return")
    assert messages == []
    np.testing.assert_array_equal(histories[0].columns["return"], result.history.metrics["return"][:, k])
    assert histories[0].algorithm == "ppo"


def test_a_state_whose_episodes_were_counted_in_float32_is_refused() -> None:
    state = dict(trained().state)
    episodes = {name: x.float() for name, x in state["tensors"]["episodes"].items()}
    state["tensors"] = {**state["tensors"], "episodes": episodes}
    with pytest.raises(StateError, match=r"episodes\.running_return must have .*float64, got .*float32.*by another version"):
        train_population(ARGS, state=state)


def test_a_policy_normalizes_observations_as_its_agent() -> None:
    result = train_population(replace(ARGS, base=replace(BASE, normalize=True)))
    network, moments = result.policy(1), result.state["tensors"]["normalizer"]
    assert torch.equal(network.normalizer.mean, moments["mean"][1])
    assert network.normalizer.count == 3 + 6 * 48
    saved = result.checkpoint(1)["policies"]["all"]["network"]
    assert torch.equal(saved["normalizer.var"], moments["var"][1])


def test_a_single_training_continues_from_the_checkpoint_of_an_agent() -> None:
    result = trained()
    longer = replace(result.args.agent(2), total_steps=8 * 48)
    continued = train(longer, checkpoint=result.checkpoint(2))
    assert [row["iteration"] for row in continued.history] == [7, 8]
    assert continued.checkpoint["policies"]["all"]["optimizer"]["body.actor.0.weight"]["step"] == 8 * 12


def test_a_population_continues_bit_for_bit_from_its_folder(tmp_path: Path) -> None:
    shorter = replace(ARGS, base=replace(BASE, anneal_lr=False, total_steps=3 * 48))
    longer = replace(ARGS, base=replace(BASE, anneal_lr=False))
    whole = train_population(longer)
    saved = load_population(save_population(tmp_path, train_population(shorter)))
    assert saved.args.seeds == ARGS.seeds
    assert saved.args.settings == ARGS.settings
    rest = train_population(replace(saved.args, base=replace(saved.args.base, total_steps=6 * 48)), state=saved.state)
    for name, column in rest.history.metrics.items():
        np.testing.assert_array_equal(column, whole.history.metrics[name][3:])
    assert rest.history.steps.tolist() == [4 * 48, 5 * 48, 6 * 48]


def test_the_file_of_a_history_has_all_numbers() -> None:
    file = io.BytesIO(to_npz(trained().history.arrays()))
    read = read_history(NpzReader(file, "f"), 3).arrays()
    for name, x in trained().history.arrays().items():
        np.testing.assert_array_equal(read[name], x)


def test_agents_are_runs_with_their_own_seeds(tmp_path: Path) -> None:
    args = PopulationArgs(BASE, 8, settings={"gamma": (0.9,) * 4 + (0.99,) * 4})
    path = save_population(tmp_path, train_population(args))
    histories, messages = read_histories([tmp_path], "return")
    assert messages == []
    assert [run.seed for run in histories] == [str(seed) for seed in range(1, 9)]
    groups, left_out = group_runs(histories)
    assert left_out == []
    assert [len(group.runs) for group in groups] == [4, 4]
    returns = load_population(path).history.metrics["return"][-1].astype(float)
    for group, own in zip(groups, (returns[:4], returns[4:]), strict=True):
        (row,) = compare_groups([group], lambda env: np.nan)
        assert row.num_seeds == 4
        assert row.final.value == pytest.approx(np.sort(own)[1:3].mean())
        assert row.final.low <= row.final.value <= row.final.high


def test_agents_with_too_many_settings_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuvec.learners.population.results.agent_runs.MAX_CONFIGURATIONS", 2)
    save_population(tmp_path, trained())
    histories, messages = read_histories([tmp_path], "return")
    assert histories == []
    assert "has agents with 3 different settings of learning_rate, gamma; at most 2 can be compared" in messages[0]


def test_the_interval_of_thousands_of_seeds_is_that_of_the_normal_approximation() -> None:
    values = np.random.default_rng(1).normal(10.0, 2.0, 4000)
    low, high = bootstrap_interval(values, lambda x: x.mean(-1))
    half_width = 1.96 * values.std() / 4000**0.5
    assert low == pytest.approx(values.mean() - half_width, abs=0.05 * half_width)
    assert high == pytest.approx(values.mean() + half_width, abs=0.05 * half_width)


def test_numbers_that_are_read_late_are_those_of_immediate_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    advance, take = BatchedPopulation.advance, Readout.take

    def log(name: str, method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            events.append(name)
            return method(*arguments)

        return call

    monkeypatch.setattr(population_training, "reads_late", lambda device: True)
    monkeypatch.setattr(BatchedPopulation, "advance", log("launch", advance))
    monkeypatch.setattr(Readout, "take", log("read", take))
    reported: list[int] = []
    options = {"on_results": lambda args, iteration, results: reported.append(iteration), "iterations_per_launch": 2}
    late = train_population(ARGS, should_stop=log("stop?", lambda: False), **options)
    assert reported == [2, 4, 6]
    assert events == ["stop?", "launch", "stop?", "launch", "read", "stop?", "launch", "read", "read"]
    for name, column in late.history.metrics.items():
        np.testing.assert_array_equal(column, trained().history.metrics[name])
    assert (np.diff(late.history.seconds) > 0).all()
    events.clear()
    train_population(ARGS, log("change", lambda population, results: None), iterations_per_launch=3)
    assert events == ["launch", "read", "change"] * 2
