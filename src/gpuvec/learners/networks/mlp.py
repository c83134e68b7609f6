"""Multilayer perceptrons: the default bodies of `actor_critic`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpuvec.learners.networks.linear import ALIGNMENT, Linear, LinearReLU

HIDDEN_GAIN = math.sqrt(2.0)
# The gain of a policy's last layer. It is small, so that the first policy prefers no action.
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0  # of the last layer of a value function
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": LinearReLU}
L = TypeVar("L", nn.Conv2d, Linear)
# The dtype in which layers compute; the results of a network are float32.
PRECISIONS = {"tf32": torch.float32, "bf16": torch.bfloat16}


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Makes the initial weights of modules that are created in the block depend on `seed` alone.

    The state of torch's global generator is restored after the block.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def make_linear(
    inputs: int, outputs: int, gain: float, weight_init: str = "orthogonal", layer_class: type[Linear] = Linear
) -> Linear:
    """Returns a linear layer with initial weights, and biases of 0.

    Args:
        inputs: number of its inputs.
        outputs: number of its outputs.
        gain: factor of the initial weights.
        weight_init: as in `init_layer`.
        layer_class: the class of the layer.
    """
    return init_layer(layer_class(inputs, outputs), gain, weight_init)


def init_layer(layer: L, gain: float, weight_init: str) -> L:
    """Writes initial weights, and biases of 0, to a linear or convolutional layer, and returns it.

    Args:
        layer: the layer.
        gain: factor of the initial weights.
        weight_init: "orthogonal" (Saxe, McClelland and Ganguli, 2014) or "xavier", uniform (Glorot and Bengio, 2010).
    """
    (nn.init.orthogonal_ if weight_init == "orthogonal" else nn.init.xavier_uniform_)(layer.weight, gain)
    nn.init.zeros_(cast(Tensor, layer.bias))
    return layer


def make_hidden_layers(sizes: Sequence[int], activation: type[nn.Module], weight_init: str = "orthogonal") -> list[nn.Module]:
    """Returns linear layers, each with an activation behind it.

    Args:
        sizes: number of the inputs, and of the outputs of each layer.
        activation: the class of the activations, or `LinearReLU`, which is a layer with its activation.
        weight_init: as in `init_layer`.
    """
    if activation is LinearReLU:
        return [make_linear(*pair, HIDDEN_GAIN, weight_init, LinearReLU) for pair in pairwise(sizes)]
    layers = ((make_linear(*pair, HIDDEN_GAIN, weight_init), activation()) for pair in pairwise(sizes))
    return [module for pair in layers for module in pair]


def make_mlp(
    sizes: Sequence[int], gain: float, activation: type[nn.Module] = nn.Tanh, weight_init: str = "orthogonal"
) -> nn.Sequential:
    """Returns a multilayer perceptron without an activation behind its last layer.

    Args:
        sizes: number of the inputs, and of the outputs of each layer.
        gain: factor of the initial weights of the last layer.
        activation: as in `make_hidden_layers`.
        weight_init: as in `init_layer`.
    """
    *hidden, outputs = sizes
    hidden_layers = make_hidden_layers(hidden, activation, weight_init)
    return nn.Sequential(*hidden_layers, make_linear(hidden[-1], outputs, gain, weight_init))


class SeparateMLP(nn.Module):
    """A perceptron for the policy and one for the value function, with hidden layers of the same sizes.

    Args:
        features: D.
        outputs: N, number of outputs of the policy.
        hidden: sizes of the hidden layers.
        weight_init: "orthogonal" or "xavier".
        activation: "tanh" or "relu".
        precision: "tf32" or "bf16".
        critic_features: Dc, those of the critic's observations, which the value function takes; None for those of the policy.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        weight_init: str = "orthogonal",
        activation: str = "tanh",
        precision: str = "tf32",
        critic_features: int | None = None,
    ) -> None:
        super().__init__()
        self.dtype, layer = PRECISIONS[precision], ACTIVATIONS[activation]
        self.actor = make_mlp((features, *hidden, outputs), POLICY_GAIN, layer, weight_init)
        value_features = features if critic_features is None else critic_features
        self.critic = make_mlp((value_features, *hidden, 1), VALUE_GAIN, layer, weight_init)

    def policy(self, obs: Tensor) -> Tensor:
        """Returns the outputs of the policy, (E, N), for `obs`, (E, D); other leading dimensions are kept."""
        outputs: Tensor = self.actor(obs.to(self.dtype))
        return outputs.float()

    def value(self, obs: Tensor) -> Tensor:
        """Returns V(obs), (E,), for `obs`, (E, D), or the critic's, (E, Dc); other leading dimensions are kept."""
        value: Tensor = self.critic(obs.to(self.dtype))
        return value.squeeze(-1).float()


class SharedMLP(nn.Module):
    """A perceptron whose hidden layers, at least one, are shared by policy and value function.

    One last layer, `head`, computes both, so that the activations before it and their gradient are read once. Its outputs are
    those of the policy, V, and zeros up to a multiple of 16 bytes, on which tensor cores are fast.

    Args:
        features: D.
        outputs: N, number of outputs of the policy.
        hidden: sizes of the hidden layers.
        weight_init: "orthogonal" or "xavier".
        activation: "tanh" or "relu".
        precision: "tf32" or "bf16".
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        weight_init: str = "orthogonal",
        activation: str = "tanh",
        precision: str = "tf32",
    ) -> None:
        super().__init__()
        self.outputs, self.dtype = outputs, PRECISIONS[precision]
        self.trunk = nn.Sequential(*make_hidden_layers((features, *hidden), ACTIVATIONS[activation], weight_init))
        last_layer = make_linear(hidden[-1], outputs + 1, 1.0, weight_init)
        multiple = ALIGNMENT // self.dtype.itemsize
        self.head = Linear(hidden[-1], -(-(outputs + 1) // multiple) * multiple)
        with torch.no_grad():
            for p in self.head.parameters():
                p.zero_()
            self.head.weight[: outputs + 1] = last_layer.weight
            self.head.weight[:outputs].mul_(POLICY_GAIN)

    def policy(self, obs: Tensor) -> Tensor:
        """Returns the outputs of the policy, (E, N), for `obs`, (E, D); other leading dimensions are kept."""
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """Returns V(obs), (E,), for `obs`, (E, D); other leading dimensions are kept."""
        return self.both(obs)[1]

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the policy, (E, N), and V(obs), (E,), for `obs`, (E, D).

        The hidden layers are computed once. Other leading dimensions are kept.
        """
        return self._outputs(self.trunk(obs.to(self.dtype)))

    def both_behind_first_layer(self, results: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the policy, (E, N), and V(obs), (E,), for `results`, (E, H), of the first linear layer.

        H is the size of this layer. Other leading dimensions are kept.
        """
        return self._outputs(self.trunk[1:](results))

    def _outputs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        head = self.head(hidden)
        policy, value = _SplitHead.apply(head, self.outputs)  # type: ignore[no-untyped-call]  # of torch's
        return policy, value


class _SplitHead(torch.autograd.Function):
    """head[..., :n] and head[..., n] in float32, with one gradient of `head`.

    The gradient of two slices by torch is the sum of two tensors of the size of `head`, which it fills with zeros.
    """

    @staticmethod
    def forward(ctx: Any, head: Tensor, n: int) -> tuple[Tensor, Tensor]:
        ctx.shape, ctx.dtype, ctx.n = head.shape, head.dtype, n
        head = head.float()
        return head[..., :n], head[..., n]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, policy_gradient: Tensor, value_gradient: Tensor) -> tuple[Tensor, None]:
        gradient, n = policy_gradient.new_empty(ctx.shape, dtype=ctx.dtype), ctx.n
        gradient[..., :n], gradient[..., n], gradient[..., n + 1 :] = policy_gradient, value_gradient, 0.0
        return gradient, None
