"""A convolutional network for images: the default body for observations (C, H, W).

It has one convolution of 16 filters of 3 x 3 with a ReLU, and the layers of a perceptron behind it, as the networks for MinAtar
(Young and Tian, 2019, arXiv:1903.03176). Policy and value function share all layers but the last.

Letters: E environments, C channels, H rows and W columns of an image, N outputs of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from gpuvec.learners.networks.convolution import KERNEL_SIZE, ConvolutionReLU
from gpuvec.learners.networks.mlp import HIDDEN_GAIN, SharedMLP, init_layer

FILTERS = 16
MAX_PIXEL = 255


def is_image(space: gym.Space[Any]) -> bool:
    """Returns whether observations of `space`, that of one agent, are images (C, H, W)."""
    return len(space.shape or ()) == 3


class SharedCNN(nn.Module):
    """A convolution and a perceptron, shared by policy and value function.

    Images of uint8 are converted to float32 where they are used. They are divided by 255 if the largest value of the space is
    255, and otherwise not scaled.

    Args:
        space: the observation space of one agent, a Box of shape (C, H, W), uint8 or float32.
        outputs: N, number of outputs of the policy.
        hidden: sizes of the hidden layers behind the convolution, at least one.
        weight_init: "orthogonal" or "xavier".
        activation: "tanh" or "relu", of the hidden layers.
        precision: "tf32" or "bf16".

    Raises:
        ValueError: images of less than 3 rows or columns, or no hidden layers.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        outputs: int,
        hidden: Sequence[int],
        weight_init: str = "orthogonal",
        activation: str = "tanh",
        precision: str = "tf32",
    ) -> None:
        super().__init__()
        assert isinstance(space, gym.spaces.Box), "images are elements of a Box"
        channels, height, width = space.shape
        if min(height, width) < KERNEL_SIZE:
            raise ValueError(
                f"the observation space is {space}; images must have at least {KERNEL_SIZE} rows and columns for the "
                "convolution: give a body of your own."
            )
        if not hidden:
            raise ValueError("hidden must be sizes of at least one layer behind the convolution of an image, got ().")
        self.image_shape = channels, height, width
        self.is_scaled = bool((space.high == MAX_PIXEL).all())
        self.convolution = init_layer(ConvolutionReLU(space.shape, FILTERS), HIDDEN_GAIN, weight_init)
        features = FILTERS * (height - KERNEL_SIZE + 1) * (width - KERNEL_SIZE + 1)
        self.layers = SharedMLP(features, outputs, hidden, weight_init, activation, precision)

    def policy(self, obs: Tensor) -> Tensor:
        """Returns the outputs of the policy, (E, N), for `obs`, (E, C, H, W); other leading dimensions are kept."""
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """Returns V(obs), (E,), for `obs`, (E, C, H, W); other leading dimensions are kept."""
        return self.both(obs)[1]

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the policy, (E, N), and V(obs), (E,), for `obs`, (E, C, H, W).

        Other leading dimensions are kept.
        """
        return self.layers.both(self._features(obs))

    def _features(self, obs: Tensor) -> Tensor:
        images = obs.reshape(-1, *self.image_shape).to(self.layers.dtype)
        if self.is_scaled:
            images = images / MAX_PIXEL
        features: Tensor = self.convolution(images)
        return features.view(*obs.shape[:-3], -1)
