"""A learner whose environments are divided into shards, some of which this process computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.guard import NO_FAULT, lowest_fault
from gpuvec.learners.environments import TrainingEnv
from gpuvec.learners.learner import Learner, PolicyFactory
from gpuvec.learners.runs.checkpoint import SHARDS, require_same_shards, split_state, state_of_shard
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.reduce import Reduce, Shard
from gpuvec.learners.shards.torchrun import Sync

TOTALS = ("episodes",)  # metrics of copies that are added, and not averaged


class ShardedLearner(Learner):
    """The learner of the first shard of this process, whose stages compute all shards of the process.

    The network of a policy, its optimiser and its normalisers exist once in a process. Each shard computes its own part alone,
    and gradients, moments and metrics are added over the shards of all processes. The results are therefore equal bit for bit
    for any number of processes.

    With sync="iteration" each process has one shard, which trains a copy of the policies alone, and all processes average the
    copies after each iteration. An iteration exchanges nothing, so a slow network between the processes costs little. The
    result is not that of one process: it is local stochastic gradient descent (Stich, 2019, arXiv:1805.09767), here with Adam,
    whose moments are averaged, too. Metrics are means over the copies that have a number; counts of episodes are sums.

    Args:
        args: the settings of the training, whose `num_envs` is the number of environments of all processes.
        envs: an environment for each shard of this process, of equally many rows.
        policies: as in `Learner`.
        processes: the processes of the training.
        sync: as in `Sharding`.

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
        sync: Sync = "gradient",
    ) -> None:
        first, self.num_shards = processes.rank * len(envs), processes.size * len(envs)
        # The rows of a copy have their numbers among those of all processes, and it adds nothing to other shards.
        self._has_copies = sync == "iteration"
        shards = [Shard(first + k, 1 if self._has_copies else self.num_shards) for k in range(len(envs))]
        super().__init__(args, envs[0], policies, shards[0])
        self.processes, self.reduce = processes, Reduce(shards[0].count, None if self._has_copies else processes)
        self.followers = [Learner(args, env, policies, shard) for env, shard in zip(envs[1:], shards[1:], strict=True)]
        for role, policy in self.policies.items():
            policy.lead([learner.policies[role] for learner in self.local_shards], self.reduce)
        self._fault_offsets = torch.stack([torch.cat(list(_fault_offsets(learner))) for learner in self.local_shards])
        self._shared_tensors = [x for policy in self.policies.values() for x in policy.tensors_without_rows()]
        processes.broadcast(self._shared_tensors)
        if self.shard.count > 1:  # a learner alone has done it
            for policy in self.policies.values():
                policy.begin()

    @property
    def local_shards(self) -> Sequence[Learner]:
        """The learners of the shards in this process."""
        return (self, *self.followers)

    def iterate(self) -> None:
        """Runs one iteration, on a GPU asynchronously."""
        super().iterate()
        self._pool_faults()
        if self._has_copies:
            self._average()

    def _pool_faults(self) -> None:
        """Writes the lowest row of all shards for each fault, in the numbering of all rows."""
        guards = [[policy.guard for policy in learner.policies.values()] for learner in self.local_shards]
        rows = torch.stack([torch.cat([guard.fault_rows for guard in shard]) for shard in guards])
        rows = rows.where(rows == NO_FAULT, rows + self._fault_offsets)
        first_rows = lowest_fault(self.processes.exchange(list(rows), False))
        for guard, part in zip(guards[0], first_rows.split([len(guard.fault_rows) for guard in guards[0]]), strict=True):
            guard.fault_rows.copy_(part)

    @torch.no_grad()
    def _average(self) -> None:
        """Replaces the tensors of this copy by the means over all copies, and the metrics."""
        averaged = [x for x in self._shared_tensors if x.is_floating_point()]
        for dtype in dict.fromkeys(x.dtype for x in averaged):
            tensors = [x for x in averaged if x.dtype == dtype]
            flat = torch.cat([x.reshape(-1) for x in tensors])
            mean = self.processes.exchange([flat], True) / self.processes.size
            for x, values in zip(tensors, mean.split([x.numel() for x in tensors]), strict=True):
                x.copy_(values.view(x.shape))
        metrics = [policy.metrics for policy in self.policies.values()] + [self.env_metrics]
        all_metrics = self.processes.exchange([torch.cat(metrics)], False)  # (processes, metrics)
        is_total = [name.rpartition("/")[2] in TOTALS for name in self.metric_names]
        totals = torch.tensor(is_total, device=all_metrics.device)
        combined = all_metrics.sum(0).where(totals, all_metrics.nanmean(0))
        for x, values in zip(metrics, combined.split([len(x) for x in metrics]), strict=True):
            x.copy_(values)

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


def _fault_offsets(learner: Learner) -> Iterable[Tensor]:
    """What is added to the fault rows of each policy of a shard, since these are rows of the shard."""
    for policy in learner.policies.values():
        first_row = learner.shard.index * policy.rows.reward.shape[1]
        offsets = [first_row if has_rows else 0 for _, _, has_rows in policy.guard.checks]
        yield torch.tensor(offsets, dtype=torch.int64, device=learner.args.device)
