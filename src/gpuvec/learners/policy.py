"""A policy, which acts in an environment, alone or beside others, and may learn from the rows of a rollout.

The learner steps the environment and asks its policies for actions; after a rollout it runs their stages. Stages read and write
only tensors that were allocated before, so that each becomes a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.env_rollout import EnvRollout, RolloutRows
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.guard import Guard
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.seeds import ACTIONS, MINIBATCHES, stream_seed

Stage = Callable[[], None]
"""A function of an iteration that reads and writes preallocated tensors alone."""


class PolicyContext(NamedTuple):
    """What a policy is made for."""

    observation_space: gym.Space[Any]  # of one agent
    action_space: gym.Space[Any]  # of one agent
    rows: RolloutRows  # the rollout of its agents
    agents_per_env: int = 1
    max_truncations: int = 0  # truncated episodes of an environment within a rollout, at most
    role: str = ALL  # its random numbers depend on it


class Policy:
    """The base of all policies.

    Args:
        args: its settings, resolved; those of the training if it does not learn.
        context: what it is made for.
    """

    metric_names: tuple[str, ...] = ()
    network: nn.Module | None = None
    """A `players.PolicyNetwork`; None for a function."""
    guard: Guard
    stages: tuple[Stage, ...] = ()
    """All stages that may follow a rollout; none if the policy does not learn."""
    single_graph = False
    """Whether all of `stages` follow each rollout, so that one CUDA graph may hold the rollout and them."""

    def __init__(self, args: TrainingArgs, context: PolicyContext) -> None:
        self.args, self.rows, self.agents_per_env = args, context.rows, context.agents_per_env
        self.role, self.action_seed = context.role, stream_seed(args.seed, ACTIONS, context.role)
        self.minibatch_seed = stream_seed(args.seed, MINIBATCHES, context.role)
        self.generator = torch.Generator(args.device).manual_seed(self.minibatch_seed)
        self.sampler = Sampler(args.device, self.action_seed)
        self.num_rollouts = torch.zeros((), dtype=torch.int64, device=args.device)  # finished ones, which key the sampler
        self.metrics = torch.zeros(len(self.metric_names), dtype=torch.float64, device=args.device)

    def report_into(self, report: Tensor) -> None:
        """Moves the metrics and, after them, the guard's findings into `report`, so that one copy reads all of it.

        Args:
            report: (len(metric_names) + len(guard.fault_rows),) float64, in which findings are stored as int64.
        """
        metrics, findings = report[: len(self.metric_names)], report[len(self.metric_names) :].view(torch.int64)
        metrics.copy_(self.metrics)
        findings.copy_(self.guard.fault_rows)
        self.metrics, self.guard.fault_rows = metrics, findings

    def begin(self) -> None:
        """Called after the environment's first reset, when `rows.obs[-1]` has the first observations."""

    def act(self, t: int, episode_start: Tensor) -> Tensor:
        """Returns the actions at `rows.obs[t]`, (R, ...) as the environment takes them.

        Args:
            t: the step of the rollout.
            episode_start: (E,) bool: environments in which an episode begins with this step.
        """
        raise NotImplementedError

    def fused_rollout(self, rollout: EnvRollout) -> Stage | None:
        """Returns a stage that fills `rollout` in place of `act`, if the policy has one and acts for all agents."""
        return None

    def finish_rollout(self) -> None:
        """Called after the last step of a rollout, in the stage that ran it."""
        self.num_rollouts.add_(1)

    def begin_update(self, iteration: int) -> tuple[Stage, ...]:
        """Sets, on the host, the values that depend on `iteration`, counted from 0, and returns the stages of its update."""
        return self.stages

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors that the next iteration depends on, as nested dicts."""
        return {"num_rollouts": self.num_rollouts}


def optimizer_state(optimizer: Adam, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns {parameter: {name: tensor}}: the state of `optimizer` by the names of `parameters`."""
    return {name: dict(optimizer.state[p]) for name, p in parameters.items()}
