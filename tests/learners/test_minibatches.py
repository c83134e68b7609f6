"""The minibatches of PPO: samples in a random order, the moments of their advantages, and means over the minibatches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from tests.support import street_env  # noqa: F401  # registers the environment
from tests.support.cuda_emulator import emulate
from tests.support.machine_code import LDL, STL, count_instructions

from gpuvec.engine.backends.cuda.nvrtc import compile_cuda_source
from gpuvec.learners.buffers.minibatches import gather_kernels, gather_rows, word_bytes
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


TENSORS = {
    "rows of 16 bytes": rows_of((7, 4, 10, 10), torch.uint8),
    "rows of 8 bytes": rows_of((7, 1, 3, 8), torch.uint8),
    "rows of 4 bytes": rows_of((7, 3), torch.float32),
    "an odd number of bytes": rows_of((7, 9), torch.uint8),
    "rows of 2 bytes": rows_of((7, 6), torch.bool),
    "integers": rows_of((7, 2), torch.int64),
    "numbers": rows_of((7,), torch.float32),
    "not aligned": rows_of((7 * 16 + 1,), torch.uint8)[1:].view(7, 16),
}


def test_gathered_rows_are_those_of_an_index(device: str) -> None:
    tensors = {name: x.to(device) for name, x in TENSORS.items()} | {"not contiguous": TENSORS["integers"].to(device)[:, :1]}
    index = torch.tensor([3, 0, 6, 6, 2], device=device)
    gathered = gather_rows(tensors, index)
    assert list(gathered) == list(tensors)
    for name, rows in gathered.items():
        assert rows.dtype == tensors[name].dtype
        assert torch.equal(rows, tensors[name][index]), name


def test_no_rows_are_gathered(device: str) -> None:
    tensors = {"rows": torch.zeros(7, 3, device=device), "no rows": torch.zeros(0, 3, device=device)}
    for name, rows in gather_rows(tensors, torch.empty(0, dtype=torch.int64, device=device)).items():
        assert rows.shape == (0, 3), name
        assert word_bytes(tensors[name]) == 4


@pytest.mark.compile
@pytest.mark.parametrize("blocks", [1, 3])
def test_the_kernel_gathers_the_rows_of_an_index(blocks: int, tmp_path: Path) -> None:
    index = torch.randint(0, 7, (100,), generator=torch.Generator().manual_seed(2))
    results = [torch.zeros(100, *x.shape[1:], dtype=x.dtype) for x in TENSORS.values()]
    sizes = [(word_bytes(x), x[0].numel() * x.element_size() // word_bytes(x)) for x in TENSORS.values()]
    assert {size for size, _ in sizes} == {1, 2, 4, 8, 16}
    members = {f"tensor{k}": x for k, x in enumerate(TENSORS.values())} | {f"result{k}": x for k, x in enumerate(results)}
    emulate(gather_kernels(tuple(sizes))["gather_rows"], tmp_path)((blocks,), order=index, num_rows=100, **members)
    for x, rows in zip(TENSORS.values(), results, strict=True):
        assert torch.equal(rows, x[index])
    code = compile_cuda_source(gather_kernels(tuple(sizes))["gather_rows"], (9, 0)).code
    assert count_instructions(code, LDL) == count_instructions(code, STL) == 0


@pytest.mark.parametrize("env", ENVS)
def test_minibatches_have_all_samples_their_moments_and_the_means_of_their_metrics(env: str, device: str) -> None:
    settings = {"num_envs": 8, "num_steps": 16, "hidden": (16,), "params": ENVS[env], "total_steps": 1280, "fused": False}
    args = PPOArgs(env=env, device=device, **settings).resolved(device)
    vector_env = gym.make_vec(env, 8, device=device, output="torch", autoreset_mode="SameStep", buffers=1, **args.params)
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
