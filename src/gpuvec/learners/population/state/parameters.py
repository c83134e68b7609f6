"""The parameters of the networks of all agents, in one array: their places, their initial values, and the networks.

Letters: P agents, N parameters of an agent, B rows, D observation features, U units.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor, nn

from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.mlp import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN
from gpuvec.learners.seeds import WEIGHTS, stream_seed

ALIGNMENT = 4  # floats, 16 bytes, at a multiple of which each parameter of an agent begins
Layers = list[tuple[Tensor, Tensor]]
"""The weights, (P, outputs, inputs), and biases, (P, outputs), of the layers of a perceptron."""
AGENTS_PER_CALL = 256
QR_ALIGNMENT = 64  # bytes


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


def initial_parameters(network: ActorCritic, args: PPOArgs, seeds: Sequence[int], layout: AgentLayout) -> Tensor:
    """Returns the initial parameters of agents, (P, N) on the CPU, equal to those of single trainings with the same seeds.

    Each agent draws from a generator with its own seed. The factorisations of a layer are one operation over some agents,
    because modules and calls for each agent take four times as long, and parts of the agents are divided among the cores.

    Args:
        network: the network of an agent, on the CPU.
        args: the settings that all agents share.
        seeds: the seeds of the P agents.
        layout: the places of the parameters.
    """
    number_of_seed = {seed: k for k, seed in enumerate(dict.fromkeys(seeds))}  # trials of a search have the same seeds
    flat = torch.zeros(len(number_of_seed), layout.num_floats)
    views, distinct = layout.views(flat), list(number_of_seed)
    gains = _gains(network)

    def draw(first: int) -> None:
        part = slice(first, first + AGENTS_PER_CALL)
        _draw({name: views[name][part] for name in gains}, gains, distinct[part], args.weight_init)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(draw, range(0, len(distinct), AGENTS_PER_CALL)))  # a list, so that errors are raised
    return flat if len(distinct) == len(seeds) else flat[[number_of_seed[seed] for seed in seeds]]


def _gains(network: ActorCritic) -> dict[str, float]:
    """Returns {name of a matrix: factor of its initial values}, in the order in which a single training draws them."""
    gains = dict[str, float]()
    for part, last_gain in (("actor", POLICY_GAIN), ("critic", VALUE_GAIN)):
        names = [name for name, p in network.named_parameters() if name.startswith(f"body.{part}.") and p.dim() == 2]
        gains |= dict.fromkeys(names, HIDDEN_GAIN) | {names[-1]: last_gain}
    return gains


def _draw(matrices: Mapping[str, Tensor], gains: Mapping[str, float], seeds: Sequence[int], weight_init: str) -> None:
    """Writes the initial matrices of some agents.

    Args:
        matrices: {name: (P, outputs, inputs)}, which are written.
        gains: the result of `_gains`.
        seeds: the seeds of the agents.
        weight_init: "orthogonal" or "xavier".
    """
    drawn = {name: torch.empty(x.shape) for name, x in matrices.items()}  # how numbers are drawn depends on strides
    generator = torch.Generator()
    for k, seed in enumerate(seeds):
        generator.manual_seed(stream_seed(seed, WEIGHTS))
        for name, x in drawn.items():
            if weight_init == "orthogonal":
                x[k].normal_(generator=generator)
            else:
                nn.init.xavier_uniform_(x[k], gains[name], generator)
    for name, x in drawn.items():
        matrices[name].copy_(_orthogonal(x).mul_(gains[name]) if weight_init == "orthogonal" else x)


def _orthogonal(x: Tensor) -> Tensor:
    """Returns the matrices, (P, outputs, inputs), that `torch.nn.init.orthogonal_` makes of the normal numbers `x`."""
    if len(x) > 1 and x[0].nbytes % QR_ALIGNMENT:  # a library may round in another way where a matrix is not aligned
        return torch.cat([_orthogonal(matrix.unsqueeze(0)) for matrix in x.unbind()])
    is_wide = x.shape[1] < x.shape[2]
    q, r = torch.linalg.qr(x.transpose(1, 2) if is_wide else x)
    q *= r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)
    matrices: Tensor = q.transpose(1, 2) if is_wide else q
    return matrices
