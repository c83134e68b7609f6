"""The initial parameters of all agents, with the bits that single trainings with the same seeds begin with.

Each agent draws from a generator with its own seed. The factorisations of a layer are one operation over some agents, because
modules and calls for each agent take four times as long, and parts of the agents are divided among the cores.

Letters: P agents, N parameters of an agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.mlp import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN
from gpuvec.learners.population.state.parameters import AgentLayout
from gpuvec.learners.seeds import WEIGHTS, stream_seed

AGENTS_PER_CALL = 256
ALIGNMENT = 64  # bytes


def initial_parameters(network: ActorCritic, args: PPOArgs, seeds: Sequence[int], layout: AgentLayout) -> Tensor:
    """Returns the initial parameters of agents, (P, N) on the CPU, equal to those of single trainings with the same seeds.

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
    if len(x) > 1 and x[0].nbytes % ALIGNMENT:  # a library may round in another way where a matrix is not aligned
        return torch.cat([_orthogonal(matrix.unsqueeze(0)) for matrix in x.unbind()])
    is_wide = x.shape[1] < x.shape[2]
    q, r = torch.linalg.qr(x.transpose(1, 2) if is_wide else x)
    q *= r.diagonal(dim1=1, dim2=2).sign().unsqueeze(1)
    matrices: Tensor = q.transpose(1, 2) if is_wide else q
    return matrices
