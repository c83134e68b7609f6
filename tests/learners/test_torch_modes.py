"""Trainings and evaluations do not depend on torch's default dtype; without gradients a training is refused."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

torch = pytest.importorskip("torch")

import gpuvec
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.evaluation.evaluate import evaluate
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import train_population
from gpuvec.learners.ppo import PPOArgs, train
from gpuvec.learners.training import make_learner, make_training_env

SIZES = {"device": "cpu", "num_envs": 8, "num_steps": 8, "num_iterations": 2, "hidden": (8,)}
PPO = PPOArgs(env="gpuvec/CartPole-v1", num_minibatches=2, **SIZES)


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(torch.float32)


def weights(network):
    return {name: value for name, value in network.state_dict().items() if value.is_floating_point()}


def assert_equal_weights(network, expected):
    for name, value in weights(expected).items():
        assert network.state_dict()[name].dtype is value.dtype
        assert torch.equal(network.state_dict()[name], value), name


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "ppo", "env": "gpuvec/CartPole-v1", "num_minibatches": 2, "normalize": True, "target_kl": 0.1},
        {"algorithm": "a2c", "env": "gpuvec/Pendulum-v1", "normalize_returns": True},
        {"algorithm": "ddpg", "env": "gpuvec/Pendulum-v1", "learning_starts": 0, "batch_size": 16, "buffer_size": 128},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_a_training_under_float64_equals_one_under_float32(settings):
    settings = {**SIZES, **settings}
    args = args_class(settings.pop("algorithm"))(**settings)
    expected = train(args)
    with default_dtype(torch.float64):
        result = train(args)
        returns = evaluate(result.network, args.env, episodes=2, device="cpu", params={"max_episode_steps": 5})
        assert_equal_weights(result.network, expected.network)
        assert len(train(dataclasses.replace(args, num_iterations=3), checkpoint=result.checkpoint).history) == 1
    assert torch.equal(returns, evaluate(expected.network, args.env, episodes=2, device="cpu", params={"max_episode_steps": 5}))


class Body(torch.nn.Module):
    """A network of a user, who does not name dtypes."""

    def __init__(self, observations, actions) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(observations.shape[0], 1 + actions.n)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def policy(self, obs):
        return self.layer(obs)[..., 1:] * self.scale

    def value(self, obs):
        return self.layer(obs)[..., 0]


def test_a_body_of_a_user_has_float32_weights():
    with default_dtype(torch.float64):
        result = train(PPO, body=Body)
    assert {p.dtype for p in result.network.parameters()} == {torch.float32}


def test_a_learner_that_is_iterated_by_hand_under_float64():
    args = PPO.resolved("cpu")

    def run():
        env = make_training_env(args, 8)
        learner = make_learner(args, env)
        for _ in range(2):
            learner.iterate()
        return learner.policy.network

    expected = run()
    with default_dtype(torch.float64):
        network = run()
    assert_equal_weights(network, expected)


def test_a_population_under_float64_equals_one_under_float32():
    args = PopulationArgs(PPO, 2)
    expected = train_population(args)
    with default_dtype(torch.float64):
        result = train_population(args)
        network = result.policy(1)
    assert_equal_weights(network, expected.policy(1))


def test_a_policy_is_loaded_under_float64_and_in_inference_mode():
    policy = gpuvec.load_policy("CartPole-v1")
    obs = torch.linspace(-0.1, 0.1, 4)
    for mode in (default_dtype(torch.float64), torch.inference_mode()):
        with mode:
            loaded = gpuvec.load_policy("CartPole-v1")
            assert torch.equal(loaded.probabilities(obs), policy.probabilities(obs))
            assert torch.equal(loaded.value(obs), policy.value(obs))
        assert not any(p.is_inference() or p.dtype is not torch.float32 for p in loaded.networks["all"].parameters())


def test_an_evaluation_in_inference_mode_changes_nothing():
    result = train(PPO)
    expected = evaluate(result.network, PPO.env, episodes=2, device="cpu", params={"max_episode_steps": 5})
    with torch.inference_mode():
        returns = evaluate(result.network, PPO.env, episodes=2, device="cpu", params={"max_episode_steps": 5})
    assert torch.equal(returns, expected)
    assert not returns.is_inference()
    train(PPO, checkpoint=result.checkpoint)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_training_without_gradients_says_why_it_cannot(mode):
    message = rf"a training computes gradients, which torch.{mode} turns off here"
    with getattr(torch, mode)():
        with pytest.raises(RuntimeError, match=message):
            train(PPO)
        with pytest.raises(RuntimeError, match=message):
            train_population(PopulationArgs(PPO, 2))
