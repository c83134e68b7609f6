"""The base class of policies, which act in an environment and may learn from the rows of a rollout.

The learner steps the environment with the actions of its policies; after a rollout it runs their stages. Stages read and write
only tensors that were allocated before, so that each can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.guard import Guard
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.evaluation.players import Draws, Player, policy
from gpuvec.learners.own_loss import Loss, Metrics
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.seeds import ACTIONS, MINIBATCHES, stream_seed
from gpuvec.learners.shards.reduce import Reduce, Shard

Stage = Callable[[], None]
"""A part of an iteration of all shards of a process, which reads and writes preallocated tensors only."""


class PolicyContext(NamedTuple):
    """The spaces, the rollout and the role of a policy."""

    observation_space: gym.Space[Any]  # of one agent
    action_space: gym.Space[Any]  # of one agent
    rollout: EnvRollout
    agents: AgentSubset  # of the policy
    role: str = ALL  # the random numbers of the policy depend on it
    critic_space: gym.Space[Any] | None = None  # of the critic's observation of one agent; None if there is none
    shard: Shard = Shard()  # the part of the training's environments to which the rows belong
    loss: Loss | None = None  # of the user, see `own_loss`
    metrics: Metrics | None = None  # of the user, see `own_loss`

    @property
    def has_action_mask(self) -> bool:
        """Whether the environment has an action mask for this role."""
        mask = self.rollout.action_mask
        return self.role in mask if isinstance(mask, dict) else mask is not None


class Policy:
    """The base of all policies.

    Args:
        args: its settings, resolved; those of the training if it does not learn.
        context: its spaces, its rollout and its role.
    """

    metric_names: tuple[str, ...] = ()
    network: nn.Module | None = None
    """A `players.PolicyNetwork`; None for a function."""
    guard: Guard
    stages: tuple[Stage, ...] = ()
    """All stages that may follow a rollout; none if the policy does not learn."""
    reads_in_place = False
    """Whether the policy reads observations where the environment writes them, see `EnvRollout.rows`."""
    single_graph = False
    """Whether all of `stages` follow each rollout, so that one CUDA graph may contain the rollout and the stages."""
    shared_attributes: tuple[str, ...] = ("network",)
    """Attributes that the shards of a process share, since they do not belong to rows."""
    shards: Sequence[Any]
    """The policies of the shards of this process, of which this one is the first; its stages compute the parts of all."""
    reduce: Reduce
    """Adds numbers of all shards of the training."""
    shared_state: tuple[str, ...] = ("network",)
    """The names of their tensors in `state_tensors`."""

    def __init__(self, args: TrainingArgs, context: PolicyContext) -> None:
        self.args, self.agents_per_env, self.shard = args, context.agents.per_env, context.shard
        self.rows = context.rollout.rows(context.agents, self.reads_in_place)
        self.shards, self.reduce = (self,), Reduce(context.shard.count)
        self.role, self.action_seed = context.role, stream_seed(args.seed, ACTIONS, context.role)
        self.minibatch_seed = stream_seed(args.seed, MINIBATCHES, context.role, self.shard.index)
        self.generator = torch.Generator(args.device).manual_seed(self.minibatch_seed)
        first_row = self.shard.index * self.rows.reward.shape[1]
        self.sampler = Sampler(args.device, self.action_seed, first_row=first_row)
        # The number of finished rollouts, from which the sampler derives its random numbers.
        self.num_rollouts = torch.zeros((), dtype=torch.int64, device=args.device)
        self.metrics = torch.zeros(len(self.metric_names), dtype=torch.float64, device=args.device)

    def report_into(self, report: Tensor) -> None:
        """Makes the metrics and the guard's fault rows views of `report`, so that one copy reads all of them.

        Args:
            report: (N,) float64, N = len(metric_names) + len(guard.fault_rows); the fault rows are stored as int64.
        """
        metrics, fault_rows = report[: len(self.metric_names)], report[len(self.metric_names) :].view(torch.int64)
        metrics.copy_(self.metrics)
        fault_rows.copy_(self.guard.fault_rows)
        self.metrics, self.guard.fault_rows = metrics, fault_rows

    def begin(self) -> None:
        """Is called after the environment's first reset, when `rows.obs[-1]` has the first observations; a stage."""

    def lead(self, shards: Sequence[Any], reduce: Reduce) -> None:
        """Is called on the policy of the first shard of a process, before its first stage; all processes call it.

        The other shards then use the network of this policy, and all else that belongs to no row.

        Args:
            shards: the same policy of all shards of this process, of which this one is the first.
            reduce: adds numbers of all shards of the training.
        """
        self.shards, self.reduce = shards, reduce
        for shard in shards[1:]:
            for name in self.shared_attributes:
                setattr(shard, name, getattr(self, name))

    def tensors_without_rows(self) -> Iterator[Tensor]:
        """Yields the tensors of the state that belong to no row, of any shapes (...)."""
        yield from leaves({name: x for name, x in self.state_tensors().items() if name in self.shared_state})

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

    def player(self, seed: int, draws: Draws) -> Player:
        """Returns a player that acts by this policy in other environments, with the parameters that it has at each time.

        It draws actions as the policy does in training; a deterministic policy takes its action, without noise.

        Args:
            seed: of the actions that are drawn.
            draws: numbers them.
        """
        assert self.network is not None, "policies without a network override this"
        return policy(self.network, greedy=False, seed=seed, draws=draws)  # type: ignore[arg-type]  # a `PolicyNetwork`

    def observations(self, row: int) -> Tensor:
        """Returns the observations of a row before each step of the last rollout, (T, ...)."""
        return self.rows.obs[:-1, row]

    def finish_rollout(self) -> None:
        """Is called after the last step of a rollout, in the same stage."""
        self.num_rollouts.add_(1)

    def begin_update(self, iteration: int) -> tuple[Stage, ...]:
        """Sets values that depend on `iteration`, counted from 0; returns the stages of its update. It runs on the host."""
        return self.stages

    def checked_values(self) -> dict[str, Tensor]:
        """Returns the numbers of the last rollout that are checked to be finite, {name: (T, R) or (T, R, K)}."""
        return {}

    def state_tensors(self) -> dict[str, Any]:
        """Returns all tensors that the next iteration depends on, as nested dicts."""
        return {"num_rollouts": self.num_rollouts}


def leaves(values: Any) -> Iterator[Tensor]:
    """Yields the tensors in nested dicts and lists, of any shapes (...).

    Args:
        values: the nesting.
    """
    if isinstance(values, Tensor):
        yield values
        return
    for value in values.values() if isinstance(values, Mapping) else values:
        yield from leaves(value)


def optimizer_state(optimizer: Adam, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns {parameter: {name: tensor}}: the state of `optimizer` by the names of `parameters`."""
    return {name: dict(optimizer.state[p]) for name, p in parameters.items()}
