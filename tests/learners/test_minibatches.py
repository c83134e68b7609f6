"""The minibatches of PPO: samples in a random order, the moments of their advantages, and means over the minibatches."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from tests.support import street_env  # noqa: F401  # registers the environment

from gpuvec.learners.buffers.row_gather import gather_rows
from gpuvec.learners.estimators.masked_moments import masked_var_mean
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import make_learner

ENVS: dict[str, dict[str, Any]] = {
    "gpuvec/CartPole-v1": {"max_episode_steps": 20},
    "tests/Street-v0": {"guards": 1, "walkers": 2, "length": 3, "num_observed": 1, "max_episode_steps": 5},  # with a mask
}


def rows_of(shape: tuple[int, ...], dtype: Any) -> Any:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((7, 4, 10, 10), torch.uint8),  # rows of 16 bytes
        ((7, 1, 3, 8), torch.uint8),  # of 8
        ((7, 3), torch.float32),
        ((7, 9), torch.uint8),  # an odd number of bytes
        ((7, 6), torch.bool),
        ((7, 2), torch.int64),
        ((7,), torch.float32),
    ],
)
def test_gathered_rows_are_those_of_index_select(shape: tuple[int, ...], dtype: Any, device: str) -> None:
    x, index = rows_of(shape, dtype).to(device), torch.tensor([3, 0, 6, 6, 2], device=device)
    rows = gather_rows(x, index)
    assert rows.dtype == dtype
    assert torch.equal(rows, x[index])


def test_rows_that_are_not_aligned_or_not_contiguous_are_gathered() -> None:
    index = torch.tensor([1, 3, 0])
    for x in (rows_of((4 * 16 + 1,), torch.uint8)[1:].view(4, 16), rows_of((4, 20), torch.uint8)[:, :16]):
        assert torch.equal(gather_rows(x, index), x[index])


@pytest.mark.parametrize("env", ENVS)
def test_minibatches_have_all_samples_their_moments_and_the_means_of_their_metrics(env: str) -> None:
    args = PPOArgs(env=env, device="cpu", num_envs=8, num_steps=16, hidden=(16,), params=ENVS[env], total_steps=1280)
    args = args.resolved("cpu")
    vector_env = gym.make_vec(env, 8, device="cpu", output="torch", autoreset_mode="SameStep", buffers=1, **args.params)
    learner = make_learner(args, vector_env)
    policy, loss, calls, norms = learner.policy, learner.policy.loss, list[Any](), list[Any]()

    def recording_loss(network: Any, samples: Any, args: Any, ent_coef: Any, moments: Any) -> Any:
        calls.append((samples, moments, loss(network, samples, args, ent_coef, moments)))
        return calls[-1][-1]

    optimize = policy.optimize
    policy.loss, policy.optimize = recording_loss, lambda: norms.append(optimize()) or norms[-1]
    learner.iterate()
    for samples, moments, _ in calls:
        for moment, expected in zip(moments, masked_var_mean(samples.advantage, samples.mask), strict=True):
            torch.testing.assert_close(moment, expected)
    log_prob = policy.buffer.log_prob.flatten()
    orders = set()
    for epoch in range(args.update_epochs):
        minibatches = [samples for samples, _, _ in calls[epoch * args.num_minibatches : (epoch + 1) * args.num_minibatches]]
        shuffled = torch.cat([samples.log_prob for samples in minibatches])
        assert torch.equal(shuffled.sort().values, log_prob.sort().values)
        orders.add(tuple(shuffled.tolist()))
    assert len(orders) == args.update_epochs
    metrics = torch.stack([torch.cat([metrics, norm.view(1)]) for (_, _, (_, metrics)), norm in zip(calls, norms, strict=True)])
    torch.testing.assert_close(policy.metrics[-len(policy.update_metrics) :], metrics.mean(0, dtype=torch.float64))
    vector_env.close()
