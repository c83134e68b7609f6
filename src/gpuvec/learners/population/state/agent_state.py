"""What the next iteration of each agent depends on, besides the environment.

Letters: P agents, N parameters of an agent, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.population.agent_metrics import RUNNING
from gpuvec.learners.population.population_args import AGENT_SETTINGS, PopulationArgs
from gpuvec.learners.population.state.adam import AdamState
from gpuvec.learners.population.state.agent_copies import AgentCopier, changed_agents
from gpuvec.learners.population.state.initial_parameters import initial_parameters
from gpuvec.learners.population.state.parameters import AgentLayout, ParameterLayout


class AgentState:
    """The parameters, the optimiser, the settings and the statistics of each agent.

    Args:
        args: the settings, resolved.
        network: the network of an agent, on the CPU.
        layout: the places of the parameters; None for those of the batched operations.

    Attributes:
        layout: the places of the parameters.
        parameters: (P, N) float32.
        adam: the moments and the number of steps.
        settings: {name of `AGENT_SETTINGS`: (P,) float64}; they may be changed between iterations.
        episodes: the running episodes of the rows.
        stopped_at: (P,) int64: the iteration, from 1, in which an agent was stopped; `RUNNING` before.
        fault: (P,) int64: the number in `FAULTS` of what was not finite then.
        num_rollouts: () int64: the number of finished rollouts.
    """

    def __init__(self, args: PopulationArgs, network: ActorCritic, layout: AgentLayout | None = None) -> None:
        device, num_agents = args.base.device, args.num_agents
        self.layout = layout or ParameterLayout(network)
        self.parameters = initial_parameters(network, args.base, args.seeds, self.layout).to(device)
        zeros = torch.zeros_like(self.parameters)
        self.adam = AdamState(zeros, zeros.clone(), torch.zeros(num_agents, device=device))
        columns = {name: args.column(name) for name in AGENT_SETTINGS}
        self.settings = {
            name: torch.tensor(column, dtype=torch.float64, device=device) for name, column in columns.items()
        }  # fmt: skip
        self.episodes = EpisodeStatistics.initial(num_agents * (args.base.num_envs or 1), device)
        self.stopped_at = torch.full((num_agents,), RUNNING, dtype=torch.int64, device=device)
        self.fault = torch.zeros(num_agents, dtype=torch.int64, device=device)
        self.num_rollouts = torch.zeros((), dtype=torch.int64, device=device)
        numbers = {"stopped_at": self.stopped_at, "fault": self.fault}
        learned = {"parameters": self.parameters, **self.adam._asdict(), **numbers}
        self._copy = AgentCopier(device, learned, self.episodes.last_return.view(num_agents, -1))

    @property
    def is_running(self) -> Tensor:
        """(P,) bool: the agents that were not stopped."""
        return self.stopped_at == RUNNING

    def stop(self, is_faulty: Tensor, fault: int, agents: slice = slice(None)) -> None:
        """Stops agents whose numbers are not finite, unless they were stopped before.

        Args:
            is_faulty: (P,) bool: of those in `agents`.
            fault: the number in `FAULTS`.
            agents: the agents that `is_faulty` is about.
        """
        stopped_at, faults = self.stopped_at[agents], self.fault[agents]
        is_new = is_faulty & (stopped_at == RUNNING)
        faults.copy_(torch.where(is_new, fault, faults))
        stopped_at.copy_(torch.where(is_new, self.num_rollouts, stopped_at))

    def tensors(self) -> dict[str, Any]:
        """Returns all tensors as nested dicts; parameters and moments by the names of a single agent's network."""
        return {
            "parameters": self.layout.views(self.parameters), "exp_avg": self.layout.views(self.adam.exp_avg),
            "exp_avg_sq": self.layout.views(self.adam.exp_avg_sq), "adam_step": self.adam.step, "settings": self.settings,
            "episodes": self.episodes._asdict(), "stopped_at": self.stopped_at, "fault": self.fault,
            "num_rollouts": self.num_rollouts,
        }  # fmt: skip

    def set_settings(self, name: str, values: ArrayLike) -> None:
        """Changes a setting of all agents.

        Args:
            name: one of `AGENT_SETTINGS`.
            values: P values.
        """
        self.settings[name].copy_(torch.from_numpy(np.array(values, np.float64)), non_blocking=True)

    def copy_learned(self, source: ArrayLike) -> None:
        """Gives each agent the parameters and the state of the optimiser of another one; its settings do not change.

        The last returns of an agent that takes what another one learned are forgotten. One that was stopped continues if it
        takes what one that runs has learned.

        Args:
            source: P numbers of the agents to copy from; the own number for an agent that keeps what it has.

        Raises:
            ValueError: an agent is copied that does not keep what it has.
        """
        sources = np.asarray(source, np.int64)
        changed = changed_agents(sources)
        origins = sources[changed]
        if len(moved := origins[sources[origins] != origins]):
            raise ValueError(f"agent {moved[0]} is copied, so it must keep what it has, but it takes that of another one.")
        if len(changed):
            self._copy(changed, origins)


def select_leading(tensors: dict[str, Any], index: dict[int, Sequence[int]]) -> dict[str, Any]:
    """Returns the same nesting with the selected elements of the first axis of each tensor.

    Args:
        tensors: nested dicts of tensors; those without an axis are returned as they are.
        index: {size of the first axis: elements to select}.
    """
    selected: dict[str, Any] = {}
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            selected[name] = select_leading(x, index)
        else:
            selected[name] = x if x.dim() == 0 else x[torch.tensor(index[len(x)], device=x.device)]
    return selected
