"""Multilayer perceptrons: linear layers with units between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

HIDDEN_GAIN = math.sqrt(2.0)


@contextmanager
def first_weights(seed: int) -> Iterator[None]:
    """Modules made within get weights that hang on the seed alone, and torch's global numbers go on as if there were none."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def linear(inputs: int, outputs: int, gain: float, init: str = "orthogonal") -> nn.Linear:
    """A layer with biases of 0 and weights that are orthogonal (Saxe, McClelland and Ganguli, 2014) or uniform with a spread by
    Glorot and Bengio (2010), "xavier"; either scaled by `gain`.
    """
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    (nn.init.orthogonal_ if init == "orthogonal" else nn.init.xavier_uniform_)(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(sizes: Sequence[int], gain: float, unit: Callable[[], nn.Module] = nn.Tanh, init: str = "orthogonal") -> nn.Sequential:
    """Layers of these sizes with units between them; `gain` is that of the last, of the others it is sqrt(2)."""
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        last = k == len(sizes) - 2
        layers += [linear(inputs, outputs, gain if last else HIDDEN_GAIN, init), *([] if last else [unit()])]
    return nn.Sequential(*layers)


class Separate(nn.Module):
    """A perceptron for the policy and one for the value function, with the same hidden layers.

    The policy's last layer is small: the first policy prefers no action.
    """

    def __init__(self, features: int, outputs: int, hidden: Sequence[int], init: str = "orthogonal") -> None:
        super().__init__()
        self.actor = mlp((features, *hidden, outputs), 0.01, init=init)
        self.critic = mlp((features, *hidden, 1), 1.0, init=init)

    def policy(self, obs: Tensor) -> Tensor:
        """(..., outputs)."""
        out: Tensor = self.actor(obs)
        return out

    def value(self, obs: Tensor) -> Tensor:
        """(...,)."""
        value: Tensor = self.critic(obs)
        return value.squeeze(-1)


class Shared(nn.Module):
    """Hidden layers that both have in common, at least one, and a last layer for each."""

    def __init__(self, features: int, outputs: int, hidden: Sequence[int], init: str = "orthogonal") -> None:
        super().__init__()
        self.trunk = nn.Sequential(mlp((features, *hidden), HIDDEN_GAIN, init=init), nn.Tanh())
        self.head = linear(hidden[-1], outputs + 1, 1.0, init)  # one layer: what is before it is read, and pulled at, once
        with torch.no_grad():
            self.head.weight[:-1].mul_(0.01)

    def policy(self, obs: Tensor) -> Tensor:
        """(..., outputs)."""
        return self.both(obs)[0]

    def value(self, obs: Tensor) -> Tensor:
        """(...,)."""
        return self.both(obs)[1]

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """What the two give, with the hidden layers computed once."""
        out = self.head(self.trunk(obs))
        return out[..., :-1], out[..., -1]
