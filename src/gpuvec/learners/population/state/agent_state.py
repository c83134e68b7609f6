"""What the next iteration of each agent depends on, besides the environment: its change by Adam, copies, and its memory.

Letters: P agents, N parameters of an agent, R rows, C copies, B samples of an agent, D observation features, K action
components.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.errors import OutOfMemoryError
from gpuvec.learners.buffers.memory_check import FLOAT32_BYTES, free_bytes
from gpuvec.learners.cuda_graphs.launches import ElementwiseLauncher, TensorSpec
from gpuvec.learners.cuda_graphs.optimizer import BETAS
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.on_policy import ADAM_EPS
from gpuvec.learners.population.population_args import AGENT_SETTINGS, RUNNING, PopulationArgs
from gpuvec.learners.population.state.environment import make_population_env, select_rows
from gpuvec.learners.population.state.parameters import AgentLayout, ParameterLayout, initial_parameters

f32, i64 = np.float32, np.int64
ROWS = ("parameters", "exp_avg", "exp_avg_sq")  # (P, N) float32
COLUMNS = {"step": torch.float32, "stopped_at": torch.int64, "fault": torch.int64}  # (P,)
# Floats of an agent. Parameters, moments and a gradient; the rest is of one group at a time.
COPIES_OF_PARAMETERS = 4
# Floats of a sample: reward, flags, log-probability, values, advantage, target and its place in the order, twice.
FLOATS_OF_SAMPLE = 20


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
        device = args.base.device
        self.layout = layout or ParameterLayout(network)
        self.parameters = initial_parameters(network, args.base, args.seeds, self.layout).to(device)
        zeros = torch.zeros_like(self.parameters)
        self.adam = AdamState(zeros, zeros.clone(), torch.zeros(args.num_agents, device=device))
        columns = {name: args.column(name) for name in AGENT_SETTINGS}
        self.settings = {name: torch.tensor(x, dtype=torch.float64, device=device) for name, x in columns.items()}
        self.episodes = EpisodeStatistics.initial(args.num_agents * (args.base.num_envs or 1), device)
        self.stopped_at = torch.full((args.num_agents,), RUNNING, dtype=torch.int64, device=device)
        self.fault = torch.zeros(args.num_agents, dtype=torch.int64, device=device)
        self.num_rollouts = torch.zeros((), dtype=torch.int64, device=device)
        numbers = {"stopped_at": self.stopped_at, "fault": self.fault}
        learned = {"parameters": self.parameters, **self.adam._asdict(), **numbers}
        self._copy = AgentCopier(device, learned, self.episodes.last_return.view(args.num_agents, -1))

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


class AdamState(NamedTuple):
    """The moments and the number of steps of each agent."""

    exp_avg: Tensor  # (P, N)
    exp_avg_sq: Tensor  # (P, N)
    step: Tensor  # (P,) float32

    def agents(self, part: slice) -> AdamState:
        """Returns views of the state of the agents in `part`."""
        return AdamState(*(x[part] for x in self))


@torch.no_grad()
def adam_step(
    parameters: Tensor, gradient: Tensor, state: AdamState, learning_rate: Tensor, is_stepped: Tensor, divisor: Tensor
) -> None:
    """Updates `parameters` and `state` in place, by a step of Adam with the step size and the number of steps of each agent.

    See Kingma and Ba, 2015, arXiv:1412.6980.

    Args:
        parameters: (P, N).
        gradient: (P, N); those of agents that are not stepped may be any numbers.
        state: that of the agents.
        learning_rate: (P,) float32.
        is_stepped: (P,) bool: the agents that are updated.
        divisor: (P,): by which the gradient is divided.
    """
    first, second = BETAS
    stepped = is_stepped.unsqueeze(1)
    gradient = torch.where(stepped, gradient / divisor.unsqueeze(1), 0.0)
    state.step.add_(is_stepped)
    steps = state.step.double()
    state.exp_avg.lerp_(gradient, torch.where(stepped, 1.0 - first, 0.0).expand_as(gradient))
    state.exp_avg_sq.mul_(torch.where(stepped, second, 1.0)).addcmul_(gradient, gradient, value=1.0 - second)
    # Before the first step of an agent both corrections are 0; its step size is 0 then.
    first_correction = torch.where(is_stepped, 1.0 - first**steps, 1.0)
    second_correction = torch.where(is_stepped, 1.0 - second**steps, 1.0).sqrt().float()
    step_size = torch.where(is_stepped, learning_rate / first_correction, 0.0).float()
    denominator = (state.exp_avg_sq.sqrt() / second_correction.unsqueeze(1)).add_(ADAM_EPS)
    parameters.sub_(step_size.unsqueeze(1) * state.exp_avg / denominator)


def make_agent_copy(ops: MemoryOps) -> DeviceFunction:
    """Returns the function that copies one parameter with its moments, and the numbers of the agent with its first parameter.

    Args:
        ops: the memory operations of the target.
    """
    load, store = ops.load, ops.store

    @inline_function
    def copy(b: Batch, index: int) -> None:
        size = i64(b.num_floats)
        number = i64(index) // size
        k = i64(index) - number * size
        target, origin = load(b.agents, number, i64), load(b.agents, i64(b.num_copies) + number, i64)
        write, read = target * size + k, origin * size + k
        store(b.parameters, write, load(b.parameters, read, f32), f32)
        store(b.exp_avg, write, load(b.exp_avg, read, f32), f32)
        store(b.exp_avg_sq, write, load(b.exp_avg_sq, read, f32), f32)
        if k == 0:
            store(b.step, target, load(b.step, origin, f32), f32)
            store(b.stopped_at, target, load(b.stopped_at, origin, i64), i64)
            store(b.fault, target, load(b.fault, origin, i64), i64)

    return copy


COPY = Elementwise("copies of agents", (*ROWS, *COLUMNS, "agents", "num_floats", "num_copies"), make_agent_copy)


def changed_agents(sources: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the agents that take what another one learned, in ascending order.

    Args:
        sources: (P,): the agent whose parameters each agent takes; the own number for one that keeps its own.
    """
    return np.flatnonzero(sources != np.arange(len(sources)))


class AgentCopier:
    """Copies what agents learned, and whether they were stopped, in place.

    It is one kernel. By PyTorch's operations a copy of six tensors is twelve launches, which take the host longer than the
    copies take the GPU.

    Args:
        device: "cpu" or "cuda:<index>".
        tensors: the tensors that are copied: those of `ROWS` and `COLUMNS`, by name.
        last_return: (P, E): returns of the last episodes, which become nan, because they are of what an agent has no longer.
    """

    def __init__(self, device: str, tensors: Mapping[str, Tensor], last_return: Tensor) -> None:
        self._launcher, self._tensors, self._last_return = ElementwiseLauncher(device), tensors, last_return
        shape = tuple(tensors["parameters"].shape)
        self._expected: dict[str, TensorSpec] = dict.fromkeys(ROWS, (shape, torch.float32))
        self._expected |= {name: (shape[:1], dtype) for name, dtype in COLUMNS.items()}

    def __call__(self, targets: NDArray[np.int64], origins: NDArray[np.int64]) -> None:
        """Copies agents, on a GPU asynchronously.

        Args:
            targets: (C,): the agents that are overwritten.
            origins: (C,): the agents that they take the place of, none of which is a target.
        """
        # From memory that is not pinned this copy is asynchronous, too: the driver has taken the numbers when it returns.
        agents = torch.from_numpy(np.stack([targets, origins])).to(self._launcher.tensor_device, non_blocking=True)
        num_floats, num_copies = self._expected["parameters"][0][1], len(targets)
        expected = {**self._expected, "agents": ((2, num_copies), torch.int64)}
        tensors = {**self._tensors, "agents": agents}
        self._launcher(COPY, num_copies * num_floats, tensors, expected, (num_floats, num_copies))
        self._last_return.index_fill_(0, agents[0], math.nan)


def select_agents(
    args: PopulationArgs, state: Mapping[str, Any], agents: Sequence[int]
) -> tuple[PopulationArgs, dict[str, Any]]:
    """Returns the settings and the state of a population that has some agents of another one alone.

    Args:
        args: the settings of the population, resolved.
        state: its state, as `PopulationResult.state`.
        agents: the numbers of the agents, at least one.
    """
    num_envs = args.base.num_envs or 1
    rows = [k * num_envs + e for k in agents for e in range(num_envs)]
    tensors = select_leading(dict(state["tensors"]), {args.num_agents * num_envs: rows, args.num_agents: agents})
    with closing(make_population_env(args.select(agents[:1]))) as env:
        env_state = select_rows(env, state["env"], rows)
    return args.select(agents), {"tensors": tensors, "env": env_state, "iteration": state["iteration"]}


def agent_bytes(args: PopulationArgs, num_parameters: int, features: int, action_size: int) -> int:
    """Returns the bytes that an agent needs.

    Args:
        args: the settings, resolved.
        num_parameters: those of an agent, with padding.
        features: D.
        action_size: K.
    """
    # Observations and final observations as the environment writes them, and twice by agent.
    sample = 4 * features + 4 * action_size + FLOATS_OF_SAMPLE
    return FLOAT32_BYTES * (COPIES_OF_PARAMETERS * num_parameters + args.base.steps_per_iteration * sample)


def require_population_memory(args: PopulationArgs, num_bytes: int) -> None:
    """Checks that the agents fit into the memory that is free.

    Args:
        args: the settings, resolved.
        num_bytes: those of an agent.

    Raises:
        OutOfMemoryError: they do not fit; the message says how many bytes are needed and free, and how many agents fit.
    """
    base, free = args.base, free_bytes(args.base.device)
    if free is not None and args.num_agents * num_bytes > free:
        fitting = free // num_bytes
        nearest = f"{fitting:,} agents fit" if fitting else "use fewer steps or environments, since not one agent fits"
        raise OutOfMemoryError(
            f"a population of {args.num_agents:,} agents with {base.num_steps:,} steps of {base.num_envs:,} environments each "
            f"needs {args.num_agents * num_bytes:,} bytes on {base.device}, where {free:,} are free; {nearest}."
        )
