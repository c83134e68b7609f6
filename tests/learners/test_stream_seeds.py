"""Random numbers of a training: adjacent seeds, roles and purposes share no stream."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.a2c import A2CArgs
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.seeds import ACTIONS, EVALUATION, INTERMEDIATE_EVALUATION, MINIBATCHES, WEIGHTS, stream_seed
from gpuvec.learners.training import make_learner, open_learner

TAG: dict[str, Any] = {"env": "gpuvec/TagGridWorld-v0", "num_envs": 2, "num_steps": 4, "hidden": (8,), "device": "cpu"}
PURPOSES = (WEIGHTS, ACTIONS, MINIBATCHES, INTERMEDIATE_EVALUATION, EVALUATION)


def test_each_seed_purpose_and_role_has_its_own_stream() -> None:
    keys = list(product([*range(50), 2**63 - 1], PURPOSES, ("all", "tagger", "runner")))
    seeds = {stream_seed(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert not seeds & {seed + k for seed, *_ in keys for k in range(4)}


def test_purpose_and_role_are_hashed_separately() -> None:
    assert stream_seed(1, "a", "bc") != stream_seed(1, "ab", "c")


def policies_of(seed: int) -> dict[str, Any]:
    """Returns the policies of a learner with two roles."""
    import gymnasium as gym

    settings: dict[str, TrainingArgs] = {
        role: A2CArgs(**TAG, total_steps=64, seed=seed).resolved("cpu") for role in ("tagger", "runner")
    }
    env = gym.make_vec(TAG["env"], 2, device="cpu", output="torch", autoreset_mode="SameStep", buffers=1)
    try:
        return {f"{role} of seed {seed}": policy for role, policy in make_learner(settings, env).policies.items()}
    finally:
        env.close()


def test_adjacent_seeds_and_roles_share_no_numbers() -> None:
    """Roles and seeds differ in their generators, actions and initial weights."""
    policies = {**policies_of(3), **policies_of(4)}
    assert len(policies) == 4
    draws = {name: tuple(torch.rand(4, generator=p.generator).tolist()) for name, p in policies.items()}
    assert len(set(draws.values())) == 4, draws
    logits, iteration = torch.zeros(64, 8), torch.zeros((), dtype=torch.int64)
    actions = {name: tuple(p.sampler.categorical(logits, iteration, 0).action.tolist()) for name, p in policies.items()}
    assert len(set(actions.values())) == 4
    weights = {name: tuple(next(p.network.parameters()).flatten()[:4].tolist()) for name, p in policies.items()}
    assert len(set(weights.values())) == 4, weights


def test_the_shards_and_the_purposes_of_a_policy_share_no_numbers() -> None:
    """Shards draw actions with one seed, each of its own rows, and minibatches with a seed of each shard."""
    with open_learner({"all": A2CArgs(**TAG, total_steps=64).resolved("cpu")}, num_shards=2) as learner:
        policies = [shard.policies["all"] for shard in learner.local_shards]
    first, second = policies
    assert len({first.minibatch_seed, second.minibatch_seed, first.action_seed}) == 3
    assert first.action_seed == second.action_seed
    draws = [torch.rand(4, generator=policy.generator) for policy in policies]
    assert not torch.equal(*draws)
    logits, iteration = torch.zeros(64, 8), torch.zeros((), dtype=torch.int64)
    assert not torch.equal(*(policy.sampler.categorical(logits, iteration, 0).action for policy in policies))


def test_the_same_seed_and_role_have_the_same_numbers() -> None:
    first, again = policies_of(3), policies_of(3)
    for name in first:
        draws = [torch.rand(4, generator=policies[name].generator) for policies in (first, again)]
        assert torch.equal(*draws)
