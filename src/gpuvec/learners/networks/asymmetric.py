"""Networks whose policy and value function have observations of their own, the default with observations of a critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from gpuvec.learners.networks.actor_critic import features_of
from gpuvec.learners.networks.cnn import SharedCNN, is_image
from gpuvec.learners.networks.mlp import ACTIVATIONS, POLICY_GAIN, PRECISIONS, make_mlp


class AsymmetricNetwork(nn.Module):
    """A perceptron for the policy, for images with a convolution, and a perceptron for the value function.

    Args:
        space: the observation space of one agent.
        critic_space: the space of the critic's observation, (Dc,).
        outputs: N, number of outputs of the policy.
        hidden: sizes of the hidden layers of both perceptrons.
        weight_init: "orthogonal" or "xavier".
        activation: "tanh" or "relu".
        precision: "tf32" or "bf16".
    """

    def __init__(
        self,
        space: gym.Space[Any],
        critic_space: gym.Space[Any],
        outputs: int,
        hidden: Sequence[int],
        weight_init: str = "orthogonal",
        activation: str = "tanh",
        precision: str = "tf32",
    ) -> None:
        super().__init__()
        self.dtype, layer = PRECISIONS[precision], ACTIVATIONS[activation]
        # The value that the convolutional network also computes is not used.
        self.image_policy = SharedCNN(space, outputs, hidden, weight_init, activation, precision) if is_image(space) else None
        if self.image_policy is None:
            self.actor = make_mlp((features_of(space), *hidden, outputs), POLICY_GAIN, layer, weight_init)
        self.critic = make_mlp((features_of(critic_space), *hidden, 1), 1.0, layer, weight_init)

    def policy(self, obs: Tensor) -> Tensor:
        """Returns the outputs of the policy, (E, N), for `obs`, (E, D) or (E, C, H, W); other leading dimensions are kept."""
        if self.image_policy is not None:
            return self.image_policy.policy(obs)
        outputs: Tensor = self.actor(obs.to(self.dtype))
        return outputs.float()

    def value(self, critic_obs: Tensor) -> Tensor:
        """Returns the values, (E,), for `critic_obs`, (E, Dc), the critic's; other leading dimensions are kept."""
        value: Tensor = self.critic(critic_obs.to(self.dtype))
        return value.squeeze(-1).float()
