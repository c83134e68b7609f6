"""A2C: loss and gradient against hand-computed numbers, updates, learning, and resuming from a checkpoint."""

from __future__ import annotations

import copy
import math
import shutil
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

import gpuvec  # noqa: F401  # registers the environments; imported after torch, which it needs
from gpuvec.errors import StateError
from gpuvec.learners.a2c import A2C, A2CArgs, a2c_loss, train
from gpuvec.learners.buffers.rollout_buffer import Samples
from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.learner import Learner
from gpuvec.learners.on_policy import ROLLOUT_METRICS
from gpuvec.learners.training import make_learner

SMALL: dict[str, Any] = {"device": "cpu", "num_envs": 8, "num_steps": 5, "hidden": (16,), "params": {"max_episode_steps": 20}}


def learner(env: str = "gpuvec/CartPole-v1", **settings: Any) -> Learner:
    args = A2CArgs(**{"env": env, **SMALL, **settings}).resolved("cpu")
    vector_env = gym.make_vec(env, args.num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)
    return make_learner(args, vector_env)


def samples(obs: Any, action: Any, advantage: Any, target: Any, mask: Any = None) -> Samples:
    """Samples without what the loss of A2C does not use."""
    unused = torch.full_like(advantage, math.nan)
    return Samples(obs, action, unused, unused, advantage, target, mask)


class TestLoss:
    def test_the_loss_of_two_samples_equals_hand_computed_numbers(self) -> None:
        """The network gives the probabilities 1/4 and 3/4, and a value of 2."""
        network: Any = learner().policy.network
        logits = torch.tensor([0.0, math.log(3.0)])
        for linear in (*network.body.actor, *network.body.critic):
            if hasattr(linear, "weight"):
                torch.nn.init.zeros_(linear.weight)
                torch.nn.init.zeros_(linear.bias)
        network.body.actor[-1].bias.data.copy_(logits)
        network.body.critic[-1].bias.data.fill_(2.0)
        batch = samples(
            torch.zeros(2, 1, 4), torch.tensor([[0], [1]]), torch.tensor([[1.0], [-2.0]]), torch.tensor([[5.0], [1.0]])
        )
        args = A2CArgs(vf_coef=0.5)
        total, (policy_loss, value_loss, entropy) = a2c_loss(network, batch, args, 0.1)
        expected_loss = -(math.log(0.25) * 1.0 + math.log(0.75) * -2.0) / 2
        chance = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
        assert policy_loss.item() == pytest.approx(expected_loss, rel=1e-5)
        assert value_loss.item() == pytest.approx((0.5 * 9.0 + 0.5 * 1.0) / 2)
        assert entropy.item() == pytest.approx(chance, rel=1e-5)
        assert total.item() == pytest.approx(expected_loss + 0.5 * 2.5 - 0.1 * chance, rel=1e-5)
        (gradient,) = torch.autograd.grad(total, network.body.critic[-1].bias)
        assert gradient.item() == pytest.approx(0.5 * ((2.0 - 5.0) + (2.0 - 1.0)) / 2)

    def test_the_gradient_of_the_logits_is_that_of_the_score(self) -> None:
        """d log pi(a) / d logits = onehot(a) - pi, times the advantage, which itself is no function of the weights."""
        network: Any = learner().policy.network
        obs, action = torch.randn(6, 3, 4), torch.randint(0, 2, (6, 3))
        advantage = torch.randn(6, 3)
        logits = network.body.actor(obs).detach().requires_grad_()
        known = -((torch.nn.functional.one_hot(action, 2) - logits.softmax(-1)) * advantage.unsqueeze(-1)) / 18
        bias = network.body.actor[-1].bias
        total, _ = a2c_loss(network, samples(obs, action, advantage, torch.zeros(6, 3)), A2CArgs(vf_coef=0.0), 0.0)
        torch.testing.assert_close(torch.autograd.grad(total, bias)[0], known.sum((0, 1)))

    def test_masked_samples_change_neither_loss_nor_gradient(self) -> None:
        network, g = learner().policy.network, torch.Generator().manual_seed(0)
        obs, action = torch.randn(4, 3, 4, generator=g), torch.randint(0, 2, (4, 3), generator=g)
        advantage, target = torch.randn(2, 4, 3, generator=g)
        mask = torch.rand(4, 3, generator=g) < 0.6
        other = advantage.masked_fill(~mask, 1e6)
        results = [a2c_loss(network, samples(obs, action, x, target, mask), A2CArgs(), 0.01) for x in (advantage, other)]
        gradients = [torch.autograd.grad(total, list(network.parameters())) for total, _ in results]
        assert all(torch.equal(x, y) for x, y in zip(*gradients, strict=True))
        counted = mask.flatten()
        parts = (x.flatten(0, 1)[counted].unsqueeze(1) for x in (obs, action, advantage, target))
        torch.testing.assert_close(results[0][0], a2c_loss(network, samples(*parts), A2CArgs(), 0.01)[0])


class TestUpdates:
    def test_one_step_of_adam_along_the_whole_rollout(self) -> None:
        a2c = learner(max_grad_norm=1e9, anneal_lr=False)
        a2c.collect()
        a2c.policy.estimate()
        s, before = a2c.policy.buffer, copy.deepcopy(a2c.policy.network)
        a2c.policy.improve()
        total, _ = a2c_loss(before, samples(s.obs[:-1], s.action, s.advantage, s.target), a2c.args, a2c.args.ent_coef)
        gradient = torch.autograd.grad(total, list(before.parameters()))
        for p, q, g in zip(before.parameters(), a2c.policy.network.parameters(), gradient, strict=True):
            torch.testing.assert_close(q, p - a2c.args.learning_rate * g / (g.abs() + 1e-5), rtol=1e-4, atol=1e-6)
        assert a2c.read()["grad_norm"] == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in gradient)), rel=1e-4)

    def test_targets_are_returns_of_up_to_t_steps(self) -> None:
        """With lambda = 1: rewards up to the end of the episode or of the rollout, and V only where it continues."""
        a2c = learner()
        s, gamma = a2c.policy.buffer, a2c.args.gamma
        a2c.iterate()
        while not s.ended.any():  # a pole falls in the end, and an episode has at most 500 steps
            a2c.collect()
        a2c.policy.estimate()
        with torch.no_grad():
            value, final = a2c.policy.network.value(s.obs).double(), a2c.policy.network.value(s.final_obs).double()
        for e in range(8):
            for t in range(5):
                total, weight = 0.0, 1.0
                for u in range(t, 5):
                    total += weight * float(s.reward[u, e])
                    weight *= gamma
                    if s.ended[u, e]:
                        total += 0.0 if s.terminated[u, e] else weight * float(final[u, e])
                        break
                else:
                    total += weight * float(value[5, e])
                assert float(s.target[t, e]) == pytest.approx(total, rel=1e-5, abs=1e-5)

    def test_all_agents_of_an_environment_train(self) -> None:
        args = A2CArgs(env="gpuvec/TagGridWorld-v0", device="cpu", num_envs=4, num_steps=6, hidden=(8,)).resolved("cpu")
        env = gym.make_vec(args.env, 4, device="cpu", output="torch", autoreset_mode="SameStep")
        a2c = make_learner(args, env)
        for _ in range(3):
            a2c.iterate()
        assert all(math.isfinite(a2c.read()[name]) for name in A2C.update_metrics)


def test_a2c_learns_cartpole() -> None:
    """All seeds learn with the tuned settings; with the defaults two of five do not."""
    result = train(tuned("gpuvec/CartPole-v1", "cpu", "a2c", total_steps=1_500_000, target_return=400.0))
    assert result.ended_by == "target_return"
    assert set(result.history[-1]) >= {*ROLLOUT_METRICS, *A2C.update_metrics}


def test_a_resumed_training_equals_an_uninterrupted_one() -> None:
    whole = learner(normalize=True)
    for _ in range(8):
        whole.iterate()
    first = learner(normalize=True)
    for _ in range(4):
        first.iterate()
    second = learner(normalize=True)
    second.iterate()
    second.load_state_dict(first.state_dict())
    for _ in range(4):
        second.iterate()
    saved, known = (one.state_tensors()["policies"]["all"] for one in (second, whole))
    for part in ("network", "episodes"):
        assert all(torch.equal(saved[part][k], x) or bool(x.isnan().all()) for k, x in known[part].items())
    for name, state in known["optimizer"].items():
        assert all(torch.equal(saved["optimizer"][name][k], x) for k, x in state.items())
    assert torch.equal(second.rollout.obs[-1], whole.rollout.obs[-1])


def test_a_checkpoint_of_ppo_is_refused() -> None:
    from gpuvec.learners.ppo import PPOArgs

    args = PPOArgs(**{**SMALL, "num_steps": 8}).resolved("cpu")
    env = gym.make_vec(args.env, args.num_envs, device="cpu", output="torch", autoreset_mode="SameStep", **args.params)
    with pytest.raises(StateError, match="this checkpoint is of ppo; it cannot continue with a2c"):
        learner().load_state_dict(make_learner(args, env).state_dict())


@pytest.mark.gpu
def test_captured_iterations_equal_eager_ones(gpu: str) -> None:
    learners = []
    for captured in (False, True):
        args = A2CArgs(num_envs=512, num_steps=8, total_steps=8 * 512 * 50).resolved("cuda:0")
        env = gym.make_vec(args.env, 512, device="cuda:0", output="torch", autoreset_mode="SameStep")
        a2c = make_learner(args, env)
        if captured:
            a2c.capture()
        for _ in range(20):
            a2c.iterate()
        learners.append(a2c)
    eager, replayed = learners
    for name, p in eager.policy.parameters.items():
        assert torch.equal(p, replayed.policy.parameters[name]), name


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_loss_learns_the_same() -> None:
    """The loss contains layers with gradients of their own."""
    settings: dict[str, Any] = {
        "num_envs": 8,
        "num_steps": 8,
        "total_steps": 256,
        "shared": True,
        "activation": "relu",
        "device": "cpu",
    }
    plain, compiled = (train(A2CArgs(**settings, compile=compile)) for compile in (False, True))
    for p, q in zip(plain.network.parameters(), compiled.network.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
