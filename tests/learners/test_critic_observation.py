"""Training with observations of a critic: rollouts, values, checkpoints, and what a learner refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

torch = pytest.importorskip("torch")

from tests.support import guess_env  # registers the environments
from torch import Tensor, nn

from gpuvec.learners.algorithms import args_class
from gpuvec.learners.environments import make_env
from gpuvec.learners.evaluation.evaluate import evaluate, load_policy
from gpuvec.learners.fused_ppo.network_shape import make_network_shape
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.cnn import AsymmetricCNN
from gpuvec.learners.networks.mlp import SeparateMLP
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.training import make_learner

E, T = 16, 12
SETTINGS: dict[str, Any] = {"num_envs": E, "num_steps": T, "hidden": (16,), "seed": 3, "device": "cpu"}
ENVS = ("tests/Guessers-v0", "tests/Guesser-v0")


def make(algorithm: str, env: str, body: Any = None, **settings: Any) -> Learner:
    """Returns a learner on the CPU."""
    args = args_class(algorithm)(**{**SETTINGS, "env": env, **settings}).resolved("cpu")
    envs = make_env(env, args.num_envs, args.params, device="cpu", output="torch", autoreset_mode="SameStep")
    return make_learner(args, envs, body)


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", ENVS[0]), ("a2c", ENVS[1])])
def test_values_are_those_of_the_critics_observations(algorithm, env):
    """The hidden number and the time are in them, and the observations of an agent have neither."""
    learner = make(algorithm, env, normalize=True)
    for _ in range(2):
        learner.iterate()
    policy = learner.policy
    buffer, network = policy.buffer, policy.network
    assert isinstance(network.body, SeparateMLP)
    assert buffer.critic_obs.shape[2] == (8 if env == ENVS[0] else 3)
    signal = buffer.critic_obs[..., -2 if env == ENVS[0] else 0]
    torch.testing.assert_close(signal, buffer.obs[..., 0], rtol=0, atol=0)
    final_signal = buffer.final_critic_obs[..., -2 if env == ENVS[0] else 0]
    torch.testing.assert_close(final_signal[buffer.ended], buffer.final_obs[..., 0][buffer.ended], rtol=0, atol=0)
    assert buffer.ended.any()
    learner.collect()
    policy.estimate()
    with torch.no_grad():
        torch.testing.assert_close(buffer.value, network.value(buffer.critic_obs))
        truncated = buffer.ended & ~buffer.terminated
        values = network.value(buffer.final_critic_obs)[truncated]
        torch.testing.assert_close(policy.final_value[truncated], values)
    assert network.critic_normalizer is not None


def test_a_value_function_learns_what_agents_do_not_see():
    """An agent that sees 0.9 guesses 1, and only the critic knows whether it is right."""
    learner = make("ppo", ENVS[1], learning_rate=0.01, gamma=0.5, num_envs=256)
    for _ in range(40):
        learner.iterate()
    network, obs = learner.policy.network, torch.full((1, 1), 0.9)
    with torch.no_grad():
        log_prob, _ = network.policy(obs).log_prob_and_entropy(torch.ones(1, dtype=torch.int64))
        values = network.value(torch.tensor([[0.9, 0.0, 1.0], [0.9, 1.0, 1.0]]))
    # The reward of this step is the probability of action 1 with hidden number 1, and that of action 0 with 0.
    probability = float(log_prob.exp())
    assert probability > 0.8
    assert float(values[1] - values[0]) == pytest.approx(2.0 * probability - 1.0, abs=0.2)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("env", ENVS)
def test_training_continues_bit_for_bit_from_a_checkpoint(env):
    first, second = make("ppo", env, normalize=True), make("ppo", env, normalize=True)
    first.iterate()
    saved = first.state_dict()
    assert saved["critic_obs"].shape[0] == E
    second.load_state_dict(saved)
    for learner in (first, second):
        learner.iterate()
    for name, value in first.policy.network.state_dict().items():
        assert torch.equal(value, second.policy.network.state_dict()[name]), name


def test_an_evaluation_needs_the_policy_alone():
    learner = make("a2c", ENVS[1])
    learner.iterate()
    _, network = load_policy(learner.state_dict(), "cpu")
    assert evaluate(network, ENVS[1], episodes=5, seed=0, device="cpu").shape == (5,)


class OwnBody(nn.Module):
    """A body of linear functions."""

    def __init__(self, observation: Any, action: Any, critic: Any) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(observation.shape[0], int(action.n)), nn.Linear(critic.shape[0], 1)

    def policy(self, obs: Tensor) -> Tensor:
        """Returns logits."""
        return self.actor(obs)

    def value(self, critic_obs: Tensor) -> Tensor:
        """Returns values."""
        return self.critic(critic_obs).squeeze(-1)


def test_a_body_of_ones_own_gets_the_space_of_the_critic():
    learner = make("ppo", ENVS[0], body=OwnBody)
    learner.iterate()
    assert learner.policy.network.body.critic.weight.shape == (1, 8)


def test_images_have_a_convolution_for_the_policy_alone():
    space, critic_space = Box(0, 255, (3, 6, 5), np.uint8), Box(-1, 1, (7,))
    network = OnPolicy.make_network(args_class("ppo")(**SETTINGS), space, Discrete(4), critic_space=critic_space)
    obs, critic_obs = torch.from_numpy(space.sample()).expand(2, 9, 3, 6, 5), torch.randn(2, 9, 7)
    assert isinstance(network.body, AsymmetricCNN)
    outputs, value = network.body.policy(obs), network.value(critic_obs)
    assert (outputs.shape, value.shape) == ((2, 9, 4), (2, 9))
    torch.testing.assert_close(outputs, network.body.layers.actor(network.body.convolution(obs)))
    # There is a gradient of each parameter, so that nothing is computed in vain.
    gradients = torch.autograd.grad(outputs.square().sum() + value.sum(), list(network.parameters()))
    assert all(gradient.any() for gradient in gradients)


def test_shared_layers_and_fused_kernels_are_refused():
    args = args_class("ppo")(**SETTINGS)
    spaces = (*guess_env.GUESSER.spaces(guess_env.GUESSER.params), None, "all", Box(-1, 1, (3,)))
    assert make_network_shape(OnPolicy.make_network(args, *spaces), args, False) == (
        "the value function takes the observations of a critic"
    )
    with pytest.raises(ValueError, match=r"shared=True is for .* has critic_observation: set shared=False"):
        OnPolicy.make_network(args_class("ppo")(**{**SETTINGS, "shared": True}), *spaces)


def test_ddpg_refuses_observations_of_a_critic():
    from gpuvec.learners.ddpg import DDPG

    space = guess_env.GUESSERS.spaces(guess_env.GUESSERS.params)
    with pytest.raises(ValueError, match=r"has critic_observation, which ddpg does not use.*use PPO or A2C"):
        DDPG.make_network(args_class("ddpg")(), *space, critic_space=space[0])
