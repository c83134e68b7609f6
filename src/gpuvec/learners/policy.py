"""A policy that plays in an environment with others or alone, and learns from the rows of a rollout.

The learner has the environment and lets its policies act; what they make of it is their own. A policy's parts read and write
only tensors that were there before, so that each becomes a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.env_rollout import EnvRollout, RolloutRows
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.guard import Guard
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.sampling.sampler import Sampler
from gpuvec.learners.seeds import ACTIONS, MINIBATCHES, stream_seed


class PolicyContext(NamedTuple):
    """A policy's place in a game."""

    observation_space: gym.Space[Any]  # of one agent
    action_space: gym.Space[Any]
    rows: RolloutRows  # what happens to its agents
    each: int = 1  # of them in an environment
    truncations: int = 0  # of an environment's episodes within a rollout, at most
    role: str = ALL  # whose policy it is, of which its random numbers depend


class Policy:
    """The policy of `context` with the settings `args`."""

    names: tuple[str, ...] = ()  # of the metrics
    network: Any = None  # a module, and `players.PolicyNetwork`; a script has none
    guard: Guard
    parts: tuple[Callable[[], None], ...] = ()  # what may follow a rollout
    single_graph = False  # whether these are what follows each, so that rollout and parts are worth being one graph

    def __init__(self, args: TrainingArgs, context: PolicyContext) -> None:
        self.args, self.rows, self.each = args, context.rows, context.each
        self.role, self.action_seed = context.role, stream_seed(args.seed, ACTIONS, context.role)
        self.minibatch_seed = stream_seed(args.seed, MINIBATCHES, context.role)
        self.generator = torch.Generator(args.device).manual_seed(self.minibatch_seed)
        self.sampler = Sampler(args.device, self.action_seed)
        self.rounds = torch.zeros((), dtype=torch.int64, device=args.device)  # rollouts, as the sampler reads them
        self.metrics = torch.zeros(len(self.names), dtype=torch.float64, device=args.device)

    def report_into(self, place: Tensor) -> None:
        """Lets the metrics, and behind them the guard's findings, be written to `place`, so that one copy reads all of it.

        Args:
            place: (len(names) + len(guard.fault_rows),) float64, in which findings are int64.
        """
        metrics, found = place[: len(self.names)], place[len(self.names) :].view(torch.int64)
        metrics.copy_(self.metrics)
        found.copy_(self.guard.fault_rows)
        self.metrics, self.guard.fault_rows = metrics, found

    def begin(self) -> None:
        """After the environment's first reset, when the last row of obs holds what is seen."""

    def act(self, t: int, began: Tensor) -> Tensor:
        """(R, ...) what the environment takes from the policy at rows.obs[t]; `began`, (E,) bool, are the environments in which
        an episode begins with this step.
        """
        raise NotImplementedError

    def player(self, rollout: EnvRollout) -> Callable[[], None] | None:
        """What plays whole rollouts in place of `act`, by one for all agents; None if there is nothing like it."""
        return None

    def check_rollout_finite(self) -> None:
        """After the last step of a rollout, within the part that played it."""
        self.rounds.add_(1)

    def prepare(self, iteration: int) -> tuple[Callable[[], None], ...]:
        """Sets what hangs on time, on the host, and gives the parts of this iteration."""
        return self.parts

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        return {"rounds": self.rounds}


def optimizer_state(optimizer: Adam, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """{parameter: what the optimiser remembers of it}."""
    return {name: dict(optimizer.state[p]) for name, p in parameters.items()}
