"""Convolutional networks for images, (C, H, W), and the choice of the default body for the observations of an environment.

The networks have one convolution of 16 filters of 3 x 3 with a ReLU, and the layers of a perceptron behind it, as those for
MinAtar (Young and Tian, 2019, arXiv:1903.03176). Policy and value function share all layers but the last, unless the value
function takes observations of a critic.

Letters: E environments, C channels, H rows and W columns of an image, D features of the convolution, Dc features of a critic's
observations, N outputs of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from gpuvec.learners.config.training_config import OnPolicyArgs
from gpuvec.learners.networks.actor_critic import features_of
from gpuvec.learners.networks.convolution import KERNEL_SIZE, ConvolutionReLU
from gpuvec.learners.networks.linear import Linear, LinearReLU
from gpuvec.learners.networks.mlp import HIDDEN_GAIN, PRECISIONS, SeparateMLP, SharedMLP, init_layer

FILTERS = 16
MAX_PIXEL = 255


def make_convolution(space: gym.Space[Any], weight_init: str, dtype: torch.dtype) -> ConvolutionReLU:
    """Returns the convolution of both networks, with initial weights.

    Images of uint8 are converted to `dtype` where they are used. They are divided by 255 if the largest value of the space is
    255, and otherwise not scaled.

    Args:
        space: the observation space of one agent, a Box of shape (C, H, W), uint8 or float32.
        weight_init: "orthogonal" or "xavier".
        dtype: in which the layer computes.

    Raises:
        ValueError: images of less than 3 rows or columns.
    """
    assert isinstance(space, gym.spaces.Box), "images are elements of a Box"
    if min(space.shape[1:]) < KERNEL_SIZE:
        raise ValueError(
            f"the observation space is {space}; images must have at least {KERNEL_SIZE} rows and columns for the "
            "convolution: give a body of your own."
        )
    divisor = MAX_PIXEL if (space.high == MAX_PIXEL).all() else 1.0
    convolution = ConvolutionReLU(space.shape, FILTERS, dtype, divisor)
    init_layer(convolution, HIDDEN_GAIN, weight_init)
    return convolution


class SharedCNN(nn.Module):
    """A convolution and a perceptron, shared by policy and value function.

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
        self.convolution = make_convolution(space, weight_init, PRECISIONS[precision])
        if not hidden:
            raise ValueError("hidden must be sizes of at least one layer behind the convolution of an image, got ().")
        self.layers = SharedMLP(self.convolution.features, outputs, hidden, weight_init, activation, precision)

    def policy(self, obs: Tensor) -> Tensor:
        """Returns the outputs of the policy, (E, N), for `obs`, (E, C, H, W); other leading dimensions are kept."""
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """Returns V(obs), (E,), for `obs`, (E, C, H, W); other leading dimensions are kept."""
        return self.both(obs)[1]

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the policy, (E, N), and V(obs), (E,), for `obs`, (E, C, H, W).

        On a GPU one kernel computes the convolution and the first linear layer, if it supports them. Other leading dimensions
        are kept.
        """
        convolution, linear = self.convolution, cast(Linear, self.layers.trunk[0])
        if not obs.is_cuda or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return self.layers.both(convolution(obs))
        # Imported here because it imports the CUDA compiler, which a CPU does not need.
        from gpuvec.learners.networks.convolution_kernels import ConvolutionShape
        from gpuvec.learners.networks.convolution_linear import VECTOR_BYTES, ConvolutionLinear, LayersShape, is_supported

        images, has_relu = obs.reshape(-1, *convolution.image_shape), isinstance(linear, LinearReLU)
        image_shape = ConvolutionShape(convolution.image_shape, obs.dtype, convolution.dtype)
        shape = LayersShape(image_shape, linear.out_features, has_relu)
        if images.data_ptr() % VECTOR_BYTES or not is_supported(shape, len(images), obs.device):
            return self.layers.both(convolution(obs))
        parameters = convolution.weight, convolution.bias, 1.0 / convolution.divisor, *linear.parameters_as(convolution.dtype)
        counter = linear.block_counter(obs.device)
        hidden: Tensor = ConvolutionLinear.apply(images, *parameters, has_relu, counter)  # type: ignore[no-untyped-call]  # of torch's
        return self.layers.both_behind_first_layer(hidden.view(*obs.shape[:-3], -1))


class AsymmetricCNN(nn.Module):
    """A convolution and a perceptron for the policy, and a perceptron for the value of the critic's observations.

    Args:
        convolution: of the images.
        layers: the perceptron behind it, and that of the critic's observations.
    """

    def __init__(self, convolution: ConvolutionReLU, layers: SeparateMLP) -> None:
        super().__init__()
        self.convolution, self.layers = convolution, layers

    def policy(self, obs: Tensor) -> Tensor:
        """Returns the outputs of the policy, (E, N), for `obs`, (E, C, H, W); other leading dimensions are kept."""
        return self.layers.policy(self.convolution(obs))

    def value(self, critic_obs: Tensor) -> Tensor:
        """Returns the values, (E,), for `critic_obs`, (E, Dc), the critic's; other leading dimensions are kept."""
        return self.layers.value(critic_obs)


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
    num_axes = len(observation_space.shape or ())
    if num_axes == 3:
        if critic_features is None:
            return SharedCNN(observation_space, outputs, *layers)
        convolution = make_convolution(observation_space, args.weight_init, PRECISIONS[args.precision])
        return AsymmetricCNN(convolution, SeparateMLP(convolution.features, outputs, *layers, critic_features))
    if num_axes != 1:
        raise ValueError(
            f"the observation space is {observation_space}; the default networks take observations of shape (D,) or "
            "(C, H, W): give a body of your own."
        )
    features = features_of(observation_space)
    if args.shared:
        return SharedMLP(features, outputs, *layers)
    return SeparateMLP(features, outputs, *layers, critic_features)
