"""The metrics of an iteration on their way to the host: one tensor, which one asynchronous copy reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.cuda_graphs.readout import Readout
from gpuvec.learners.metric_names import ENV_METRICS
from gpuvec.learners.policy import Policy


class MetricReport:
    """One tensor into which all policies write their metrics and fault rows, followed by the metrics of the environment.

    Args:
        args: the settings of the training.
        policies: {role: policy}; their metrics and fault rows become views of the tensor.
        agents_per_env: {role: number of its agents in an environment}.
        env_metrics: the names of the metrics of the environment.
    """

    def __init__(
        self,
        args: TrainingArgs,
        policies: Mapping[str, Policy],
        agents_per_env: Mapping[str, int],
        env_metrics: Sequence[str],
    ) -> None:
        self._args, self._policies, self._agents_per_env = args, policies, agents_per_env
        of_policies = (
            name if role == ALL else f"{role}/{name}" for role, policy in policies.items() for name in policy.metric_names
        )
        self.metric_names = (*of_policies, *(f"{ENV_METRICS}/{name}" for name in env_metrics))
        """The names of the metrics; those of the policy of a role begin with the role, and the environment's with "metrics"."""
        sizes = [len(policy.metric_names) + len(policy.guard.fault_rows) for policy in policies.values()]
        report = torch.zeros(sum(sizes) + len(env_metrics), dtype=torch.float64, device=args.device)
        *parts, self.env_metrics = report.split([*sizes, len(env_metrics)])
        for policy, part in zip(policies.values(), parts, strict=True):
            policy.report_into(part)
        self._readout = Readout(report)
        self._iterations: deque[int] = deque()  # of the reads that are pending

    @property
    def pending(self) -> int:
        """The number of reads that were started and not finished, at most two."""
        return self._readout.pending

    def start(self, iteration: int) -> None:
        """Starts to read the tensor, asynchronously.

        Args:
            iteration: the iteration that wrote it.
        """
        self._readout.start()
        self._iterations.append(iteration)

    def finish(self) -> dict[str, float]:
        """Waits for the oldest read that was started, and returns its metrics.

        Raises:
            NonFiniteError: a number in the iteration of that read is not finite.
        """
        report, iteration = self._readout.take(), self._iterations.popleft()
        metrics: list[float] = []
        for role, policy in self._policies.items():
            sizes = len(policy.metric_names), len(policy.guard.fault_rows)
            values, fault_rows, report = report.split([*sizes, len(report) - sum(sizes)])
            agents, role_name = self._agents_per_env[role], "" if role == ALL else role
            policy.guard.raise_fault(fault_rows.view(torch.int64).tolist(), iteration, self._args.env, agents, role_name)
            metrics += values.tolist()
        metrics += report.tolist()
        return dict(zip(self.metric_names, metrics, strict=True))
