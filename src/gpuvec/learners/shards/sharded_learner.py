"""A learner whose environments are divided into shards, some of which this process computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.guard import NO_FAULT
from gpuvec.learners.environments import TrainingEnv
from gpuvec.learners.learner import Learner, PolicyFactory
from gpuvec.learners.policy import Stage
from gpuvec.learners.runs.checkpoint import SHARDS, require_same_shards, split_state, state_of_shard
from gpuvec.learners.shards.pooling import lowest_fault, run_in_lockstep
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.shard import Shard


class ShardedLearner(Learner):
    """The learner of the first shard of this process, which runs its other shards in lockstep.

    The network of a policy, its optimiser and its normalisers exist once in a process. Each shard computes its own part alone,
    and gradients, moments and metrics are pooled over the shards of all processes. The results are therefore equal bit for bit
    for any number of processes.

    Args:
        args: the settings of the training.
        envs: an environment for each shard of this process, of equally many rows.
        policies: as in `Learner`.
        processes: the processes of the training.
        shards: those of this process; None for equal parts that are pooled.

    Raises:
        OutOfMemoryError: the rollouts, or what a policy stores, do not fit into the memory that is free.
        LostProcessError: another process ended.
    """

    def __init__(
        self,
        args: TrainingArgs,
        envs: Sequence[TrainingEnv],
        policies: Mapping[str, PolicyFactory],
        processes: Processes,
        shards: Sequence[Shard] | None = None,
    ) -> None:
        first, self.num_shards = processes.rank * len(envs), processes.size * len(envs)
        shards = shards or [Shard(first + k, self.num_shards, leads=k == 0) for k in range(len(envs))]
        super().__init__(args, envs[0], policies, shards[0])
        self.processes = processes
        self.followers = [Learner(args, env, policies, shard) for env, shard in zip(envs[1:], shards[1:], strict=True)]
        for follower in self.followers:
            for role, policy in follower.policies.items():
                policy.share_with(self.policies[role])
        for role, policy in self.policies.items():
            policy.lead_shards([learner.policies[role] for learner in self.local_shards], processes)
        stages = [learner.all_stages() for learner in self.local_shards]
        self._stages_of_all: dict[Stage, Stage] = {
            each[0]: partial(run_in_lockstep, each, processes.exchange) for each in zip(*stages, strict=True)
        }
        self._fault_offsets = torch.stack([torch.cat(list(_fault_offsets(learner))) for learner in self.local_shards])
        processes.broadcast(list(self._shared_tensors()))
        if self.shard.count > 1:  # a learner alone has done it
            for role in self.policies:
                run_in_lockstep([learner.policies[role].begin for learner in self.local_shards], processes.exchange)

    @property
    def local_shards(self) -> Sequence[Learner]:
        """The learners of the shards in this process."""
        return (self, *self.followers)

    def stage_of_all(self, stage: Stage) -> Stage:
        """Returns the function that runs a stage in all shards of this process."""
        return self._stages_of_all.get(stage, stage)

    def iterate(self) -> None:
        """Runs one iteration, on a GPU asynchronously."""
        super().iterate()
        self._pool_faults()

    def _pool_faults(self) -> None:
        """Writes the lowest row of all shards for each fault, in the numbering of all rows."""
        guards = [[policy.guard for policy in learner.policies.values()] for learner in self.local_shards]
        rows = torch.stack([torch.cat([guard.fault_rows for guard in shard]) for shard in guards])
        rows = rows.where(rows == NO_FAULT, rows + self._fault_offsets)
        first_rows = lowest_fault(self.processes.exchange(list(rows), False), NO_FAULT)
        for guard, part in zip(guards[0], first_rows.split([len(guard.fault_rows) for guard in guards[0]]), strict=True):
            guard.fault_rows.copy_(part)

    def _shared_tensors(self) -> Iterable[torch.Tensor]:
        """All tensors that the shards of a process share."""
        for policy in self.policies.values():
            yield from policy.tensors_without_rows()

    def state_dict(self) -> dict[str, Any]:
        """Returns a checkpoint of all shards; all processes must call it.

        It is that of the first shard, with the states of the others as "shards".

        Raises:
            LostProcessError: another process ended.
        """
        shared = {role: policy.shared_state for role, policy in self.policies.items()}
        states = [Learner.state_dict(learner) for learner in self.local_shards]
        gathered = self.processes.gather_states([split_state(state, shared) for state in states])
        first, *others = [part for of_process in gathered for part in of_process]
        policies = {role: {**values, **first["policies"][role]} for role, values in states[0]["policies"].items()}
        return {**states[0], **first, "policies": policies, SHARDS: others}

    def load_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restores the state in which `state_dict` returned `checkpoint`, for any number of processes.

        Raises:
            StateError: a checkpoint of another environment, of other policies or settings, or of other shards.
        """
        require_same_shards(checkpoint, self.num_shards)
        for learner in self.local_shards:
            learner.load_shard(state_of_shard(checkpoint, learner.shard.index))


def _fault_offsets(learner: Learner) -> Iterable[torch.Tensor]:
    """What is added to the fault rows of each policy of a shard, since these are rows of the shard."""
    for policy in learner.policies.values():
        first_row = learner.shard.index * policy.rows.reward.shape[1]
        offsets = [first_row if has_rows else 0 for _, _, has_rows in policy.guard.checks]
        yield torch.tensor(offsets, dtype=torch.int64, device=learner.args.device)
