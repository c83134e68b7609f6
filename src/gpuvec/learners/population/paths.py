"""The choice of what trains a population."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import ArrayLike
from torch import Tensor

from gpuvec.learners.population.batched.batched_population import GROUP_SIZES, BatchedPopulation
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.processes.cpu_population import CPUPopulation

logger = logging.getLogger(__name__)


class PopulationPath(Protocol):
    """A population that learns."""

    name: str
    """What trains it, for messages."""
    args: PopulationArgs
    """The settings, resolved."""
    iteration: int
    """The number of finished iterations."""

    @property
    def stopped_at(self) -> Tensor:
        """(P,) int64: the iteration in which an agent was stopped, because a number was not finite; -1 for one that runs."""

    def capture(self) -> None:
        """Prepares launches on a GPU; the state is the same afterwards."""

    def advance(self, iterations: int) -> Tensor:
        """Runs iterations, on a GPU asynchronously, and returns their `METRICS`, (iterations, metrics, P) float32.

        Args:
            iterations: the number of iterations.
        """

    def evaluate(self) -> Tensor:
        """Returns the mean return of each agent in an evaluation, (P,) float32 on the CPU, nan for agents that were stopped.

        See `PopulationEvaluator`. Nothing of the training changes.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all that the next iteration depends on; see `BatchedPopulation.tensors`."""

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from the moment at which `state_dict` was called.

        Args:
            saved: its result, of a population with the same seeds, networks and environment.
        """

    def set_settings(self, name: str, values: ArrayLike) -> None:
        """Changes a setting of all agents for the iterations that follow.

        Args:
            name: one of `AGENT_SETTINGS`.
            values: P values.
        """

    def copy_learned(self, source: ArrayLike) -> None:
        """Gives each agent the parameters and the moments of another one; settings and environments do not change.

        An agent that was stopped continues if it takes those of one that runs.

        Args:
            source: P numbers of agents; the own number for an agent that keeps what it has, as each agent that is copied does.
        """

    def close(self) -> None:
        """Frees the environments."""


def make_population(args: PopulationArgs) -> PopulationPath:
    """Returns a population that is ready to learn, and logs what trains it.

    On a GPU it is one kernel, unless fused=False. With fused="auto" it is batched operations where the kernel does not support
    the GPU or the training, and the reason is logged.

    Args:
        args: the settings, resolved.

    Raises:
        ValueError: an environment that a population does not support, or fused=True and a training that the kernel does not.
        OutOfMemoryError: the agents do not fit into the memory that is free.
        RuntimeError: processes of a CPU cannot train, for example because the environment is registered in this process alone.
    """
    population: PopulationPath | str = ""
    if args.base.fused is True or (args.base.fused == "auto" and args.base.device != "cpu"):
        # Imported here because it imports the CUDA compiler, which a CPU does not need.
        from gpuvec.learners.population.kernel.kernel_population import make_kernel_population

        population = make_kernel_population(args)
        if isinstance(population, str) and args.base.fused is True:
            raise ValueError(f'fused=True, but the kernel cannot be used: {population}. Use fused="auto", or change that.')
    if isinstance(population, str):
        if population:
            logger.info("The kernel for populations is not used: %s.", population)
        is_divided = args.base.device == "cpu" and args.base.threads > 1 and args.num_agents > GROUP_SIZES["cpu"]
        population = CPUPopulation(args) if is_divided else BatchedPopulation(args)
    logger.info("%d agents are trained by %s.", args.num_agents, population.name)
    return population
