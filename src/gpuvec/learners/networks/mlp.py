"""Multilayer perceptrons: linear layers with units between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gpuvec.learners.networks.rectified import BYTES, Linear, Rectified

HIDDEN_GAIN = math.sqrt(2.0)
UNITS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": Rectified}
PRECISIONS = {"tf32": torch.float32, "bf16": torch.bfloat16}  # in which layers reckon; what comes out of them is float32


@contextmanager
def first_weights(seed: int) -> Iterator[None]:
    """Modules made within get weights that hang on the seed alone, and torch's global numbers go on as if there were none."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def linear(inputs: int, outputs: int, gain: float, init: str = "orthogonal", kind: type[Linear] = Linear) -> Linear:
    """A layer with biases of 0 and weights that are orthogonal (Saxe, McClelland and Ganguli, 2014) or uniform with a spread by
    Glorot and Bengio (2010), "xavier"; either scaled by `gain`.
    """
    layer = kind(inputs, outputs)
    (nn.init.orthogonal_ if init == "orthogonal" else nn.init.xavier_uniform_)(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def hidden_layers(sizes: Sequence[int], unit: type[nn.Module], init: str = "orthogonal") -> list[nn.Module]:
    """Layers of these sizes, with a gain of sqrt(2) and a unit after each; `Rectified` are layers with their units."""
    if unit is Rectified:
        return [linear(*pair, HIDDEN_GAIN, init, Rectified) for pair in pairwise(sizes)]
    return [layer for pair in pairwise(sizes) for layer in (linear(*pair, HIDDEN_GAIN, init), unit())]


def mlp(sizes: Sequence[int], gain: float, unit: type[nn.Module] = nn.Tanh, init: str = "orthogonal") -> nn.Sequential:
    """Layers of these sizes with units between them; `gain` is that of the last."""
    *before, last = sizes
    return nn.Sequential(*hidden_layers(before, unit, init), linear(before[-1], last, gain, init))


class Separate(nn.Module):
    """A perceptron for the policy and one for the value function, with the same hidden layers.

    The policy's last layer is small: the first policy prefers no action.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        init: str = "orthogonal",
        unit: str = "tanh",
        precision: str = "tf32",
    ) -> None:
        super().__init__()
        self.dtype = PRECISIONS[precision]
        self.actor = mlp((features, *hidden, outputs), 0.01, UNITS[unit], init)
        self.critic = mlp((features, *hidden, 1), 1.0, UNITS[unit], init)

    def policy(self, obs: Tensor) -> Tensor:
        """(..., outputs)."""
        out: Tensor = self.actor(obs.to(self.dtype))
        return out.float()

    def value(self, obs: Tensor) -> Tensor:
        """(...,)."""
        value: Tensor = self.critic(obs.to(self.dtype))
        return value.squeeze(-1).float()


class Shared(nn.Module):
    """Hidden layers that both have in common, at least one, and a last layer for each.

    The two last ones are one, `head`, so that what is before it is read, and pulled at, once. It gives the policy's numbers, V,
    and zeros up to 16 bytes, on whose multiples matrix units are fast.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: Sequence[int],
        init: str = "orthogonal",
        unit: str = "tanh",
        precision: str = "tf32",
    ) -> None:
        super().__init__()
        self.outputs, self.dtype = outputs, PRECISIONS[precision]
        self.trunk = nn.Sequential(*hidden_layers((features, *hidden), UNITS[unit], init))
        last = linear(hidden[-1], outputs + 1, 1.0, init)
        together = BYTES // self.dtype.itemsize
        self.head = Linear(hidden[-1], -(-(outputs + 1) // together) * together)
        with torch.no_grad():
            for p in self.head.parameters():
                p.zero_()
            self.head.weight[: outputs + 1] = last.weight
            self.head.weight[:outputs].mul_(0.01)

    def policy(self, obs: Tensor) -> Tensor:
        """(..., outputs)."""
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """(...,)."""
        return self.both(obs)[1]

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """What the two give, with the hidden layers computed once."""
        policy, value = _Apart.apply(self.head(self.trunk(obs.to(self.dtype))), self.outputs)  # type: ignore[no-untyped-call]  # of torch's
        return policy.float(), value.float()


class _Apart(torch.autograd.Function):
    """out[..., :n] and out[..., n]. torch's gradient of two slices is two of the whole, which it fills and adds up."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, n: int) -> tuple[Tensor, Tensor]:
        ctx.shape, ctx.n = out.shape, n
        return out[..., :n], out[..., n]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_policy: Tensor, of_value: Tensor) -> tuple[Tensor, None]:
        gradient, n = of_policy.new_empty(ctx.shape), ctx.n
        gradient[..., :n], gradient[..., n], gradient[..., n + 1 :] = of_policy, of_value, 0.0
        return gradient, None
