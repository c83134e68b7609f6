"""Advantages, targets and what is told of a rollout, in one kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device as named_device
from gpuvec.learners.config.ppo_config import PPOArgs
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.fused_ppo.fused_launch import launcher
from gpuvec.learners.fused_ppo.network_shape import FOLDER, Shape

THREADS = 32  # of a block: rows are few, and each thread waits for memory
FOUND = 13  # words that a block leaves
ESTIMATE = {
    "obs": "const float*", "action": "const void*", "log_prob": "const float*", "reward": "const float*",
    "value": "const float*", "last_value": "const float*", "terminated": "const bool*", "ended": "const bool*",
    "advantage": "float*", "target": "float*", "records": "float*", "running_return": "float*", "running_length": "float*",
    "last_return": "float*", "found": "void*",
    "arrived": "unsigned*", "iteration": "long long*", "metrics": "double*", "odd": "long long*", "steps": "i64", "rows": "i64",
    "gamma": "double", "lambda": "double", "reward_scale": "double",
}  # fmt: skip


def kernel(shape: Shape) -> CudaSource:
    """The kernel."""
    constants = shape.constants | {"THREADS": THREADS}
    return CudaSource(FOLDER / "estimate.cu", "estimate", tuple(ESTIMATE.items()), tuple(constants.items()), THREADS)


class Estimate:
    """The estimates of rollouts of `rows` environments.

    Args:
        shape: of the network.
        args: the settings.
        rows: R.
        records: of the samples, as `Update` has them.
        iteration: scalar int64 on the device, to which 1 is added.
    """

    def __init__(self, shape: Shape, args: PPOArgs, rows: int, records: Tensor, iteration: Tensor) -> None:
        self._args, self._rows, self._records, self._iteration = args, rows, records, iteration
        self._launch = launcher(kernel(shape), named_device(args.device))
        self._blocks = -(-rows // THREADS)
        self._found = torch.zeros(self._blocks, FOUND, dtype=torch.int32, device=args.device)
        self._arrived = torch.zeros((), dtype=torch.int32, device=args.device)

    def __call__(self, storage: Any, last_value: Tensor, episodes: EpisodeStatistics, metrics: Tensor, odd: Tensor) -> None:
        """Writes advantages, targets and records, goes on with `episodes`, and tells.

        Args:
            storage: `on_policy.Storage`.
            last_value: (T, R): V of the last observations of truncated episodes, where there are any.
            episodes: what is carried from rollout to rollout.
            metrics: (5,) float64: those of a rollout, `on_policy.ROLLOUT_METRICS`.
            odd: (4,) int64: the lowest rows of which a reward, log-probability, value or advantage is not finite, or -1.
        """
        a, s = self._args, storage
        self._launch(
            self._blocks, early=True, obs=s.obs, action=s.action, log_prob=s.log_prob, reward=s.reward, value=s.value,
            last_value=last_value, terminated=s.terminated, ended=s.ended, advantage=s.advantage, target=s.target,
            records=self._records, **episodes._asdict(), found=self._found, arrived=self._arrived,
            iteration=self._iteration, metrics=metrics, odd=odd, steps=len(s.reward), rows=self._rows, gamma=a.gamma,
            reward_scale=a.reward_scale, **{"lambda": a.gae_lambda},
        )  # fmt: skip
