"""The network of PPO and A2C that the settings describe, for users who give none."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from torch import nn

from gpuvec.learners.config.training_config import OnPolicyArgs
from gpuvec.learners.networks.actor_critic import features_of
from gpuvec.learners.networks.cnn import AsymmetricCNN, SharedCNN, is_image
from gpuvec.learners.networks.mlp import SeparateMLP, SharedMLP


def default_body(
    args: OnPolicyArgs, observation_space: gym.Space[Any], outputs: int, critic_features: int | None = None
) -> nn.Module:
    """Returns the network of the settings: a perceptron, or for images a convolution and a perceptron.

    Args:
        args: the settings.
        observation_space: of one agent.
        outputs: the number of outputs of the policy.
        critic_features: the number of features of the critic's observation; None if the environment has none.

    Raises:
        ValueError: the settings or the spaces do not fit such a network.
    """
    layers = args.hidden, args.weight_init, args.activation, args.precision
    if args.shared and critic_features is not None:
        raise ValueError(
            "shared=True is for a value function that takes the observations of the policy, and the environment has "
            "critic_observation: set shared=False."
        )
    if is_image(observation_space):
        if critic_features is None:
            return SharedCNN(observation_space, outputs, *layers)
        return AsymmetricCNN(observation_space, critic_features, outputs, *layers)
    if len(observation_space.shape or ()) != 1:
        raise ValueError(
            f"the observation space is {observation_space}; the default networks take observations of shape (D,) or "
            "(C, H, W): give a body of your own."
        )
    features = features_of(observation_space)
    if args.shared:
        return SharedMLP(features, outputs, *layers)
    return SeparateMLP(features, outputs, *layers, critic_features)
