"""The place of each parameter of a network among those of the kernel.

Letters: P agents, N parameters of an agent with padding, D features, H units of the kernel's layers.
"""

from __future__ import annotations

from torch import Tensor

from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.population.kernel.population_shape import MAX_HIDDEN, PopulationShape


class KernelParameterLayout:
    """The places of the parameters, as layout.cuh has them: the actor, then the critic, each with its small parameters first.

    Args:
        network: the network of an agent.
        shape: that of the kernel.
    """

    def __init__(self, network: ActorCritic, shape: PopulationShape) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
        self._shape = shape
        self.num_floats = 2 * shape.network_size
        """N, with padding, which stays 0."""

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns {name: view of `flat`}, (P, ...) each, by the names of `ActorCritic.named_parameters()`.

        Args:
            flat: (P, N): parameters, moments or gradients.
        """
        return {name: self._view(flat, name, shape) for name, shape in self.shapes.items()}

    def _view(self, flat: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        s = self._shape
        tail = s.small_columns * MAX_HIDDEN
        if name == "log_std":
            return flat[:, tail + s.action_size : tail + 2 * s.action_size]
        _, part, number, kind = name.split(".")
        network: Tensor = flat.unflatten(1, (2, s.network_size))[:, int(part == "critic")]
        numbers = sorted({int(other.split(".")[2]) for other in self.shapes if other.startswith(f"body.{part}.")})
        layer = numbers.index(int(number))
        columns: Tensor = network[:, :tail].unflatten(1, (s.small_columns, MAX_HIDDEN))  # (P, columns, units)
        if layer == len(numbers) - 1:
            first = s.features + s.layers
            return columns[:, first : first + shape[0], : shape[1]] if kind == "weight" else network[:, tail : tail + shape[0]]
        if layer == 0:
            weights = columns[:, 1 : 1 + s.features].transpose(1, 2)
            return weights[:, : shape[0]] if kind == "weight" else columns[:, 0, : shape[0]]
        if kind == "weight":
            between: Tensor = network[:, s.num_small :].unflatten(1, (MAX_HIDDEN, MAX_HIDDEN))
            return between[:, : shape[0], : shape[1]]
        return columns[:, s.features + 1, : shape[0]]
