"""Running moments of observations, and a learner whose networks receive normalised observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpuvec.learners.evaluation.evaluate import load_policy
from gpuvec.learners.networks.normalizer import LIMIT, Normalizer
from gpuvec.learners.ppo import PPOArgs, train
from gpuvec.learners.training import make_learner

SMALL: dict[str, Any] = {"device": "cpu", "num_envs": 8, "num_steps": 16, "hidden": (8,), "normalize": True}


def test_moments_are_those_of_all_unmasked_samples() -> None:
    random = np.random.default_rng(0)
    batches = [random.normal(50.0, 3.0, (t, 7, 2)).astype(np.float32) for t in (1, 5, 40)]
    masks = [random.random(x.shape[:2]) < 0.6 for x in batches]
    normalizer = Normalizer(2)
    for x, mask in zip(batches, masks, strict=True):
        normalizer.update(torch.from_numpy(x), torch.from_numpy(mask))
        normalizer.update(torch.from_numpy(x), torch.zeros(x.shape[:2], dtype=torch.bool))  # no sample is no change
    samples = np.concatenate([x[mask] for x, mask in zip(batches, masks, strict=True)]).astype(np.float64)
    assert normalizer.count.item() == len(samples)
    np.testing.assert_allclose(normalizer.mean.numpy(), samples.mean(0), rtol=1e-6)
    np.testing.assert_allclose(normalizer.var.numpy(), samples.var(0), rtol=1e-4)
    normal = normalizer(torch.from_numpy(samples.astype(np.float32))).numpy()
    np.testing.assert_allclose(normal.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(normal.std(0), 1.0, rtol=1e-4)


def test_nearly_constant_observations_are_not_amplified() -> None:
    normalizer = Normalizer(2)
    normalizer.update(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    assert normalizer(torch.tensor([1.005, 1.0])).tolist() == pytest.approx([0.5, 0.0], abs=1e-4)
    assert normalizer(torch.tensor([1e9, -1e9])).tolist() == [LIMIT, -LIMIT]


def test_moments_change_only_between_rollouts() -> None:
    """The first minibatch is evaluated by the policy that acted, so that its ratios are 1."""
    import gymnasium as gym

    args = PPOArgs(**SMALL, update_epochs=1, num_minibatches=1).resolved("cpu")
    env = gym.make_vec(args.env, num_envs=8, device="cpu", output="torch", autoreset_mode="SameStep", buffers=1)
    ppo = make_learner(args, env)
    assert ppo.policy.network.normalizer is not None
    for _ in range(3):
        ppo.collect()
        ppo.policy.estimate()
        before = ppo.policy.network.normalizer.count.item()
        s = ppo.policy.buffer
        log_prob, _ = ppo.policy.network.policy(s.obs[:-1]).log_prob_and_entropy(s.action)
        np.testing.assert_allclose(log_prob.detach().numpy(), ppo.policy.buffer.log_prob.numpy(), atol=1e-6)
        ppo.policy.improve()
        assert ppo.policy.network.normalizer.count.item() == before + 8 * 16
    env.close()


def test_a_checkpoint_contains_the_moments() -> None:
    result = train(PPOArgs(**SMALL, total_steps=3 * 8 * 16))
    _, network = load_policy(result.checkpoint, "cpu")
    obs = torch.randn(5, 4)
    assert torch.equal(network.body.actor[0].weight, result.network.body.actor[0].weight)
    assert torch.equal(network.policy(obs).mode(), result.network.policy(obs).mode())
    assert torch.equal(network.value(obs), result.network.value(obs))
    assert network.normalizer is not None
    assert network.normalizer.count.item() == 8 + 3 * 8 * 16


def test_a_resumed_training_equals_an_uninterrupted_one() -> None:
    args, states = PPOArgs(**SMALL, total_steps=6 * 8 * 16), []
    whole = train(args, lambda ppo, _: states.append(ppo.state_dict()))
    rest = train(args, checkpoint=states[2])
    for x, y in zip(whole.network.state_dict().values(), rest.network.state_dict().values(), strict=True):
        assert torch.equal(x, y)
