"""Evaluations of the agents of a population."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from contextlib import closing

from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluation.evaluate import run_first_episodes
from gpuvec.learners.evaluation.players import Draws, policy
from gpuvec.learners.population.batched import population_evaluator
from gpuvec.learners.population.batched.batched_population import BatchedPopulation
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.population.population_training import train_population
from gpuvec.learners.population.results.population_result import PopulationResult
from gpuvec.learners.population.search.population_based_training import PBTArgs, population_based_training
from gpuvec.learners.population.search.search_space import SearchParameter
from gpuvec.learners.seeds import INTERMEDIATE_EVALUATION, stream_seed

LIMIT, EPISODES = 5, 8
BASE = PPOArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=3, num_steps=16, num_iterations=6, num_minibatches=3, hidden=(16, 8),
    params={"max_episode_steps": LIMIT}, evaluate_every=2, evaluate_episodes=EPISODES,
)  # fmt: skip
ARGS = PopulationArgs(BASE, 3, settings={"learning_rate": (1e-3, 1e-2, 1e-4)})


@cache
def trained() -> PopulationResult:
    return train_population(ARGS)


def evaluated_alone(result: PopulationResult, k: int) -> float:
    """The mean return of an agent in the evaluation of a single training with its seed and its final policy."""
    seed, iteration, draws = result.args.seeds[k], result.state["iteration"], Draws("cpu")
    draws.begin(iteration)
    player = policy(result.policy(k), greedy=False, seed=stream_seed(seed, INTERMEDIATE_EVALUATION), draws=draws)
    env, params = result.args.base.env, result.args.base.evaluate_params
    with closing(make_env(env, EPISODES, params, device="cpu", output="torch", buffers=1)) as envs:
        env_seed = stream_seed(seed, INTERMEDIATE_EVALUATION, index=iteration)
        return float(run_first_episodes(envs, player(envs), env_seed).returns.mean())


@pytest.mark.parametrize("case", ["discrete", "continuous, normalised"])
def test_an_agent_is_evaluated_as_in_a_single_training_with_its_seed(case: str) -> None:
    result = trained()
    if case != "discrete":
        base = replace(BASE, env="gpuvec/Pendulum-v1", normalize=True, evaluate_params={"max_episode_steps": 20})
        result = train_population(PopulationArgs(base, 3))
    evaluations = result.history.metrics["eval_return"]
    assert np.isfinite(evaluations).all(1).tolist() == [False, True] * 3
    for k in range(3):
        assert evaluations[-1, k] == pytest.approx(evaluated_alone(result, k), rel=1e-5)
    np.testing.assert_array_equal(result.history.final_returns(), evaluations[-1])


def test_the_environments_have_their_own_parameters_unless_others_are_chosen() -> None:
    assert (trained().history.metrics["eval_return"][-1] > LIMIT).all()
    chosen = replace(ARGS, base=replace(BASE, evaluate_params={"max_episode_steps": 3}, evaluate_every=None))
    evaluations = train_population(chosen).history.metrics["eval_return"]
    assert np.isnan(evaluations[:-1]).all()
    assert (evaluations[-1] == 3.0).all()


def test_an_evaluation_changes_no_bit_of_the_training() -> None:
    without = train_population(replace(ARGS, base=replace(BASE, evaluate_every=None)))
    for name in METRICS:
        np.testing.assert_array_equal(without.history.metrics[name], trained().history.metrics[name])
    for name, x in without.state["tensors"]["parameters"].items():
        assert torch.equal(x, trained().state["tensors"]["parameters"][name])
    for name, x in without.state["env"]["buffers"].items():
        assert torch.equal(x, trained().state["env"]["buffers"][name])


def test_an_evaluation_does_not_depend_on_other_agents_nor_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, count = (7, *range(100, 138)), 39
    many = PopulationArgs(replace(BASE, num_iterations=2), count, seeds).resolved("cpu")
    results = []
    for max_rows in (2**16, 16 * EPISODES):  # one part, and three
        monkeypatch.setattr(population_evaluator, "MAX_ROWS", max_rows)
        with closing(BatchedPopulation(many)) as population:
            population.advance(2)
            results.append(population.evaluate())
    assert torch.equal(*results)
    with closing(BatchedPopulation(many.select([0, 38]))) as population:
        population.advance(2)
        assert torch.equal(population.evaluate(), results[0][[0, 38]])


def test_an_agent_that_was_stopped_has_no_return() -> None:
    with closing(BatchedPopulation(ARGS.resolved("cpu"))) as population:
        population.advance(1)
        population.state.parameters[1] = torch.nan
        population.advance(1)
        assert population.stopped_at.tolist() == [-1, 2, -1]
        assert population.evaluate().isnan().tolist() == [False, True, False]


def test_a_training_that_continues_has_the_same_evaluations() -> None:
    first = train_population(ARGS, last_iteration=3)
    rest = train_population(ARGS, state=first.state)
    expected: Any = trained().history.metrics["eval_return"]
    np.testing.assert_array_equal(rest.history.metrics["eval_return"], expected[3:])
    np.testing.assert_array_equal(first.history.metrics["eval_return"][1], expected[1])
    assert np.isfinite(first.history.metrics["eval_return"][2]).all()  # at the end of a part


def test_agents_that_change_are_evaluated_between_changes() -> None:
    rate = SearchParameter("learning_rate", "log", 1e-4, 1e-2)
    with pytest.raises(ValueError, match="evaluate_every must be a multiple of the 3 iterations between two changes, got 2"):
        population_based_training(PBTArgs(BASE, (rate,), 3, interval=3))


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [True, False])
def test_evaluations_on_a_gpu_depend_on_the_agent_alone_and_change_no_bit(gpu: str, fused: bool) -> None:
    base = PPOArgs(
        env="gpuvec/CartPole-v1", device=f"{gpu}:0", num_envs=4, num_steps=64, num_iterations=12, num_minibatches=4,
        fused=fused, hidden=(64, 64), evaluate_episodes=EPISODES,
    )  # fmt: skip
    args = PopulationArgs(base, 5)
    result, without = (train_population(replace(args, base=replace(base, evaluate_every=n))) for n in (5, None))
    evaluations = result.history.metrics["eval_return"]
    assert np.flatnonzero(np.isfinite(evaluations).all(1)).tolist() == [4, 9, 11]
    np.testing.assert_array_equal(without.history.metrics["eval_return"][-1], evaluations[-1])
    for name in METRICS:
        np.testing.assert_array_equal(without.history.metrics[name], result.history.metrics[name])
    for name, x in without.state["tensors"]["parameters"].items():
        assert torch.equal(x, result.state["tensors"]["parameters"][name])
    alone = train_population(replace(args, base=replace(base, evaluate_every=5)).select([1, 4]))
    np.testing.assert_array_equal(alone.history.metrics["eval_return"], evaluations[:, [1, 4]])
