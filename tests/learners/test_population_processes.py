"""A population in several processes: the same bits as in one, and errors that name their cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.config.training_config import PPOArgs  # imported after torch, which it needs
from gpuvec.learners.population.batched.batched_population import BatchedPopulation
from gpuvec.learners.population.cpu_population import CPUPopulation
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import make_population

P = 18  # of two groups
BASE = PPOArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=3, num_steps=16, num_iterations=6, num_minibatches=3, hidden=(8,),
    params={"max_episode_steps": 5}, threads=2,
)  # fmt: skip
ARGS = PopulationArgs(BASE, P, settings={"learning_rate": [1e-3 * (k + 1) for k in range(P)]}).resolved("cpu")


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    """A population in two processes, and one in this process, which do the same."""
    with closing(make_population(ARGS)) as population, closing(BatchedPopulation(ARGS)) as alone:
        assert isinstance(population, CPUPopulation)
        assert population.name == "batched operations in 2 processes"
        yield population, alone


def assert_equal(x: Any, y: Any, path: str = "") -> None:
    """Asserts that nested states are equal bit for bit."""
    if isinstance(x, dict):
        assert x.keys() == y.keys(), path
        for name in x:
            assert_equal(x[name], y[name], f"{path}.{name}")
    elif isinstance(x, torch.Tensor):
        assert torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all()), path
    else:
        assert x == y, path


def test_it_has_the_bits_of_one_process(processes: Any) -> None:
    saved = processes[0].state_dict()
    results = [population.advance(2) for population in processes]
    assert_equal(*results)
    for population in processes:
        population.set_settings("ent_coef", [0.01 * k for k in range(P)])
        population.copy_learned([17, *range(1, P)])
    assert_equal(*(population.advance(1) for population in processes))
    states = [population.state_dict() for population in processes]
    del states[0]["env"]["seed"], states[1]["env"]["seed"]
    assert_equal(*states)
    assert_equal(*(population.stopped_at for population in processes))
    assert_equal(*(population.evaluate() for population in processes))
    for population in processes:
        population.load_state_dict(saved)
        assert population.iteration == 0
        assert_equal(population.advance(2), results[0])


def test_a_process_that_cannot_train_names_the_reason() -> None:
    with pytest.raises(RuntimeError, match=r"a process that trains agents ended: NameNotFound: .*Nothing"):
        CPUPopulation(replace(ARGS.select([0]), base=replace(ARGS.base, env="gpuvec/Nothing-v0")))
