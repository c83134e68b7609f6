"""A learner of a process that trains a copy of the policies, which all processes average after each iteration.

An iteration exchanges nothing, so a slow network between the processes costs little. The result is not that of one process: it
is local stochastic gradient descent (Stich, 2019, arXiv:1805.09767), here with Adam, whose moments are averaged, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.environments import TrainingEnv
from gpuvec.learners.learner import PolicyFactory
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.shard import Shard
from gpuvec.learners.shards.sharded_learner import ShardedLearner

TOTALS = ("episodes",)  # metrics that are added, and not averaged


class AveragingLearner(ShardedLearner):
    """The learner of one of several copies.

    Metrics are means over the copies, of those that have a number; counts of episodes are sums.

    Args:
        args: the settings of the training, whose `num_envs` is the number of environments of all processes.
        env: the environments of this process.
        policies: as in `Learner`.
        processes: the processes of the training.

    Raises:
        OutOfMemoryError: the rollouts, or what a policy stores, do not fit into the memory that is free.
        LostProcessError: another process ended.
    """

    def __init__(
        self, args: TrainingArgs, env: TrainingEnv, policies: Mapping[str, PolicyFactory], processes: Processes
    ) -> None:
        # Its rows have their numbers among those of all processes, and it pools nothing with other shards.
        super().__init__(args, [env], policies, processes, [Shard(processes.rank, 1)])
        self._averaged = list(self._averaged_tensors())

    def _averaged_tensors(self) -> Iterable[Tensor]:
        for policy in self.policies.values():
            yield from (x for x in policy.tensors_without_rows() if x.is_floating_point())

    def iterate(self) -> None:
        """Runs one iteration, on a GPU asynchronously, and averages the copies."""
        super().iterate()
        self._average()

    @torch.no_grad()
    def _average(self) -> None:
        """Replaces the tensors of this copy by the means over all copies, and the metrics."""
        for dtype in dict.fromkeys(x.dtype for x in self._averaged):
            tensors = [x for x in self._averaged if x.dtype == dtype]
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
