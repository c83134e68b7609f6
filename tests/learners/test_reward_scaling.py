"""Scaled rewards, compared with plain NumPy; and that the scale changes targets but not reported returns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gpuvec  # noqa: F401  # registers the environments
from gpuvec.engine.backends import elementwise
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.estimators.reward_scaling import DISCOUNTED_RETURNS, RewardScaler
from gpuvec.learners.training import make_learner


def expected_rewards(rewards: Any, overs: Any, masks: Any, gamma: float) -> Any:
    """Returns the scaled rewards of each rollout, computed from all discounted returns up to its end."""
    running, returns, scaled = np.zeros(rewards.shape[2]), [], []
    for reward, over, mask in zip(rewards, overs, masks, strict=True):
        for t in range(len(reward)):
            running = np.where(mask[t], gamma * running, running) + reward[t]
            returns += list(running[mask[t]])
            running = np.where(over[t], 0.0, running)
        scaled.append(reward / np.sqrt(np.var(returns)))
    return scaled


@pytest.mark.parametrize("steps", [1, 16, 37])
@pytest.mark.parametrize("masked", [False, True])
def test_rewards_of_several_rollouts_are_scaled_by_the_deviation_of_returns(device: str, steps: int, masked: bool) -> None:
    rng, rows = np.random.default_rng(steps), 33
    overs = rng.random((3, steps, rows)) < 0.2
    masks = rng.random((3, steps, rows)) < 0.7 if masked else np.ones((3, steps, rows), bool)
    rewards = np.where(masks, rng.normal(3.0, 2.0, (3, steps, rows)), 0.0).astype(np.float32)
    place = "cuda:0" if device == "cuda" else "cpu"
    scaler = RewardScaler(rows, 0.9, place)
    for reward, over, acts, known in zip(rewards, overs, masks, expected_rewards(rewards, overs, masks, 0.9), strict=True):
        tensors = [torch.from_numpy(np.ascontiguousarray(x)).to(place) for x in (reward, over, acts)]
        mask = tensors[2] if masked else None
        scaler.moments.update(scaler.returns(*tensors[:2], mask), mask)
        actual = tensors[0] / scaler.deviation
        np.testing.assert_allclose(actual.cpu().numpy(), known, rtol=1e-4)


@pytest.mark.parametrize(
    ("reward", "over", "error", "words"),
    [
        (torch.zeros(4, 2).double(), torch.zeros(4, 2).bool(), TypeError, "reward must be torch.float32, got torch.float64"),
        (torch.zeros(4, 2), torch.zeros(4, 2), TypeError, "done must be torch.bool, got torch.float32"),
        (torch.zeros(4, 3), torch.zeros(4, 3).bool(), ValueError, r"reward must .* of shape \(4, 2\)"),
        (torch.zeros(4, 2), torch.zeros(3, 2).bool(), ValueError, r"done must .* of shape \(4, 2\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(reward: Any, over: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RewardScaler(2, 0.9, "cpu").returns(reward, over)


def learner(algorithm: str, **settings: Any) -> Any:
    env = "gpuvec/Pendulum-v1"
    options = {"num_envs": 8, "num_steps": 16, "params": {"max_episode_steps": 10}, **settings}
    args = args_class(algorithm)(env=env, device="cpu", **options).resolved("cpu")
    vector_env = gym.make_vec(env, 8, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)
    return make_learner(args, vector_env)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_targets_are_scaled_and_reported_returns_are_not(algorithm: str) -> None:
    plain, scaled = learner(algorithm, gae_lambda=1.0), learner(algorithm, gae_lambda=1.0, reward_scale=0.125)
    normal = learner(algorithm, gae_lambda=1.0, normalize_returns=True)
    for each in (plain, scaled, normal):
        each.collect()
        each.policy.estimate()
    s, known = plain.policy.buffer, torch.zeros(17, 8)
    # A target is a sum of discounted rewards and a value at its end, which the scale does not change.
    for t in reversed(range(16)):
        known[t] = s.reward[t] + plain.args.gamma * known[t + 1] * ~s.ended[t]
    torch.testing.assert_close(s.target - scaled.policy.buffer.target, (1.0 - 0.125) * known[:16], rtol=1e-4, atol=1e-3)
    assert torch.equal(plain.policy.metrics[:3], scaled.policy.metrics[:3])
    assert torch.equal(plain.policy.metrics[:3], normal.policy.metrics[:3])
    assert float(normal.policy.buffer.target.abs().max()) < 10.0 < float(plain.policy.buffer.target.abs().max())


def test_ddpg_stores_scaled_rewards() -> None:
    more: dict[str, Any] = {"buffer_size": 400, "batch_size": 16, "n_step": 1}
    plain, scaled = learner("ddpg", **more), learner("ddpg", reward_scale=0.125, **more)
    for each in (plain, scaled):
        each.collect()
        each.policy.store()
    assert torch.equal(scaled.policy.replay.transitions.reward, 0.125 * plain.policy.replay.transitions.reward)
    assert torch.equal(scaled.policy.metrics[:3], plain.policy.metrics[:3])


def test_a_scale_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reward_scale must be above 0, got 0\.0"):
        args_class("ppo")(reward_scale=0.0)


@pytest.mark.compile
def test_the_kernel_has_no_float64() -> None:
    from tests.engine.test_kernels_compile import compile_kernel

    kernel = compile_kernel(
        elementwise.kernel_body(DISCOUNTED_RETURNS),
        numba_cuda.kernel_signature(DISCOUNTED_RETURNS.batch, None, ()),
        DISCOUNTED_RETURNS.threads,
    )
    assert kernel.float64 == []
    assert (kernel.stack, kernel.spills) == (0, 0)
