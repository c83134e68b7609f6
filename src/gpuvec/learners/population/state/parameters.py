"""The parameters of the networks of all agents, in one array, and the networks that they are.

Letters: P agents, N parameters of an agent, B rows, D observation features, U units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from gpuvec.learners.networks.actor_critic import ActorCritic

ALIGNMENT = 4  # floats, 16 bytes, at a multiple of which each parameter of an agent begins
Layers = list[tuple[Tensor, Tensor]]
"""The weights, (P, outputs, inputs), and biases, (P, outputs), of the layers of a perceptron."""


class AgentLayout(Protocol):
    """The places of the parameters among the N floats of an agent."""

    num_floats: int
    """N, with padding, which is 0."""

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns {name: view of `flat`}, (P, ...) each, by the names of `ActorCritic.named_parameters()`.

        Args:
            flat: (P, N): parameters, moments or gradients.
        """


class ParameterLayout:
    """The place of each parameter among the N floats of an agent.

    Args:
        network: the network of an agent.
    """

    def __init__(self, network: ActorCritic) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
        self.offsets: dict[str, int] = {}
        self.num_floats = 0
        """N, with padding, which is 0."""
        for name, p in network.named_parameters():
            self.offsets[name] = self.num_floats
            self.num_floats += -(-p.numel() // ALIGNMENT) * ALIGNMENT

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns {name: view of `flat`}, (P, ...) each, by the names of `ActorCritic.named_parameters()`.

        Args:
            flat: (P, N): parameters, moments or gradients.
        """
        views = {}
        for name, shape in self.shapes.items():
            size = torch.Size(shape).numel()
            views[name] = flat[:, self.offsets[name] : self.offsets[name] + size].unflatten(1, shape)
        return views


def layers_of(views: Mapping[str, Tensor], part: str) -> Layers:
    """Returns the layers of the policy or of the value function.

    Args:
        views: the parameters by name, (P, ...).
        part: "actor" or "critic".
    """
    prefix = f"body.{part}."
    numbers = sorted({int(name.removeprefix(prefix).split(".")[0]) for name in views if name.startswith(prefix)})
    return [(views[f"{prefix}{k}.weight"], views[f"{prefix}{k}.bias"]) for k in numbers]


def evaluate_layers(layers: Layers, x: Tensor, activation: str) -> Tensor:
    """Returns the outputs of the perceptrons of P agents, (P, B, U).

    Args:
        layers: those of the agents.
        x: the inputs, (P, B, D).
        activation: "tanh" or "relu", between the layers.
    """
    for k, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
        if k + 1 < len(layers):
            x = x.tanh() if activation == "tanh" else x.relu()
    return x


def load_network(network: ActorCritic, views: Mapping[str, Tensor], k: int) -> None:
    """Copies the parameters of agent `k` into a network.

    Args:
        network: the network.
        views: the parameters of all agents by name, (P, ...).
        k: the number of the agent.
    """
    with torch.no_grad():
        for name, p in network.named_parameters():
            p.copy_(views[name][k])
