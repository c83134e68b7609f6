"""Advantages, targets and metrics of a rollout in one kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.fused_ppo.fused_launch import make_tensor_launcher
from gpuvec.learners.fused_ppo.network_shape import FOLDER, NetworkShape

THREADS = 32  # per block: rows are few, and the kernel is bound by memory latency
WORDS_PER_BLOCK = 13  # 4-byte words that a block writes
ESTIMATE = {
    "obs": "const float*", "action": "const void*", "log_prob": "const float*", "reward": "const float*",
    "value": "const float*", "last_value": "const float*", "terminated": "const bool*", "ended": "const bool*",
    "advantage": "float*", "target": "float*", "records": "float*", "running_return": "float*", "running_length": "float*",
    "last_return": "float*", "found": "void*",
    "arrived": "unsigned*", "iteration": "long long*", "metrics": "double*", "nonfinite_row": "long long*",
    "steps": "i64", "rows": "i64",
    "gamma": "double", "lambda": "double", "reward_scale": "double",
}  # fmt: skip


def estimate_kernel(shape: NetworkShape) -> CudaSource:
    """Returns the kernel for a network `shape`."""
    constants = shape.constants | {"THREADS": THREADS}
    return CudaSource(FOLDER / "estimate.cu", "estimate", tuple(ESTIMATE.items()), tuple(constants.items()), THREADS)


class FusedEstimate:
    """Estimates advantages and targets of rollouts of `rows` environments.

    Args:
        shape: of the network.
        args: the settings, resolved.
        rows: R.
        records: (T * R, record) float32, the records of `FusedUpdate`.
        iteration: () int64 on the device, to which 1 is added.
    """

    def __init__(self, shape: NetworkShape, args: PPOArgs, rows: int, records: Tensor, iteration: Tensor) -> None:
        self._args, self._rows, self._records, self._iteration = args, rows, records, iteration
        self._launch = make_tensor_launcher(estimate_kernel(shape), parse_device(args.device))
        self._blocks = -(-rows // THREADS)
        self._block_results = torch.zeros(self._blocks, WORDS_PER_BLOCK, dtype=torch.int32, device=args.device)
        self._arrived = torch.zeros((), dtype=torch.int32, device=args.device)

    def __call__(
        self, storage: Any, last_value: Tensor, episodes: EpisodeStatistics, metrics: Tensor, nonfinite_row: Tensor
    ) -> None:
        """Writes advantages, targets and records, and updates `episodes` and `metrics`.

        Args:
            storage: the rollout, a `RolloutBuffer`.
            last_value: (T, R) float32, values of the last observations of truncated episodes.
            episodes: running returns and lengths, carried from rollout to rollout.
            metrics: (5,) float64, receives the metrics `on_policy.ROLLOUT_METRICS`.
            nonfinite_row: (4,) int64, receives the lowest rows with a reward, log-probability, value or advantage that is not
                finite, or -1.
        """
        a, s = self._args, storage
        self._launch(
            self._blocks, dependent_launch=True, obs=s.obs, action=s.action, log_prob=s.log_prob, reward=s.reward,
            value=s.value, last_value=last_value, terminated=s.terminated, ended=s.ended, advantage=s.advantage,
            target=s.target, records=self._records, **episodes._asdict(), found=self._block_results, arrived=self._arrived,
            iteration=self._iteration, metrics=metrics, nonfinite_row=nonfinite_row, steps=len(s.reward), rows=self._rows,
            gamma=a.gamma,
            reward_scale=a.reward_scale, **{"lambda": a.gae_lambda},
        )  # fmt: skip
