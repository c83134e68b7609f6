"""Evaluations: the first episodes of environments that are made once, of policies during a training and after it."""

from __future__ import annotations

from contextlib import closing

import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluation.evaluate import run_episodes, run_first_episodes
from gpuvec.learners.evaluation.players import at_random


def test_environments_that_are_used_again_give_the_same_episodes() -> None:
    with closing(make_env("gpuvec/CartPole-v1", 6, {}, device="cpu", output="torch", buffers=1)) as envs:
        first, other, again = (run_first_episodes(envs, at_random(1)(envs), seed) for seed in (3, 4, 3))
    assert torch.equal(first.returns, run_episodes("gpuvec/CartPole-v1", at_random(1), episodes=6, seed=3, device="cpu").returns)
    assert torch.equal(first.returns, again.returns)
    assert not torch.equal(first.returns, other.returns)


def test_each_row_may_have_a_seed_of_its_own() -> None:
    """Rows k of a batch that several policies share play the episodes that they would play alone."""
    with closing(make_env("gpuvec/CartPole-v1", 4, {}, device="cpu", output="torch", buffers=1)) as envs:
        act = lambda obs: torch.zeros(len(obs), dtype=torch.int64)  # noqa: E731  # a policy in one line
        batch = run_first_episodes(envs, act, [7, 7, 8, 9])
    assert batch.returns[0] == batch.returns[1]
    alone = [run_episodes("gpuvec/CartPole-v1", lambda envs: act, episodes=1, seed=s, device="cpu") for s in (7, 8, 9)]
    assert batch.returns[1:].tolist() == [float(one.returns[0]) for one in alone]
