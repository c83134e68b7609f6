"""Fused estimates: advantages, targets, metrics and records of a rollout in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.buffers.rollout_buffer import RolloutBuffer
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.tensor_launches import make_tensor_launcher
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics, episode_metrics
from gpuvec.learners.fused_ppo.network_shape import SOURCE_FOLDER, NetworkShape

THREADS = 32  # per block, since there are few rows, and the kernel is bound by memory latency
NUM_TOTALS = 10  # of a shard: six sums over rows, then moments of advantages and targets
BLOCK_RESULT_WORDS = 20  # words of 4 bytes of a `BlockResult` of estimate.cu
ESTIMATE_MEMBERS = {
    "obs": "const float*", "action": "const void*", "log_prob": "const float*", "reward": "const float*",
    "value": "const float*", "final_value": "const float*", "terminated": "const bool*", "ended": "const bool*",
    "advantage": "float*", "target": "float*", "records": "float*", "running_return": "double*", "running_length": "double*",
    "last_return": "double*", "block_results": "void*",
    "num_finished_blocks": "unsigned*", "iteration": "long long*", "metrics": "double*", "fault_rows": "long long*",
    "num_steps": "i64", "num_rows": "i64", "gamma": "double", "gae_lambda": "double", "reward_scale": "double",
}  # fmt: skip


def estimate_kernel(shape: NetworkShape, is_shard: bool = False) -> CudaSource:
    """Returns the kernel.

    Args:
        shape: of the network.
        is_shard: whether it writes the totals of one of several shards, see `pool_totals`, in place of metrics.
    """
    constants = shape.constants | {"THREADS": THREADS, "IS_SHARD": int(is_shard)}
    names = tuple(ESTIMATE_MEMBERS.items()), tuple(constants.items())
    return CudaSource(SOURCE_FOLDER / "estimate.cu", "estimate", *names, THREADS)


class FusedEstimate:
    """Estimates advantages and targets of rollouts of `rows` environments.

    Args:
        shape: of the network.
        args: the settings, resolved.
        rows: R.
        records: (T * R, record_size) float32, the records of `FusedUpdate`.
        iteration: () int64 on the device, which is incremented.
        is_shard: whether the environments are those of one of several shards.
    """

    def __init__(
        self, shape: NetworkShape, args: PPOArgs, rows: int, records: Tensor, iteration: Tensor, is_shard: bool = False
    ) -> None:
        self._args, self._num_rows, self._records, self._iteration = args, rows, records, iteration
        self._launch = make_tensor_launcher(estimate_kernel(shape, is_shard), parse_device(args.device))
        self._num_blocks = -(-rows // THREADS)
        self._block_results = torch.zeros(self._num_blocks, BLOCK_RESULT_WORDS, dtype=torch.int32, device=args.device)
        self._num_finished_blocks = torch.zeros((), dtype=torch.int32, device=args.device)

    def __call__(
        self, buffer: RolloutBuffer, final_value: Tensor, episodes: EpisodeStatistics, metrics: Tensor, fault_rows: Tensor
    ) -> None:
        """Writes advantages, targets and records, and updates `episodes` and `metrics`.

        Args:
            buffer: the rollout.
            final_value: (T, R) float32, values of the final observations of truncated episodes.
            episodes: the running episodes, which are updated.
            metrics: (6,) float64, receives the metrics `on_policy.ROLLOUT_METRICS`; for a shard (10,), receives its totals.
            fault_rows: (N,) int64, whose first four elements receive the lowest rows with a reward, log-probability, value or
                advantage that is not finite, or -1.
        """
        a, s = self._args, buffer
        self._launch(
            self._num_blocks, dependent_launch=True, obs=s.obs, action=s.action, log_prob=s.log_prob, reward=s.reward,
            value=s.value, final_value=final_value, terminated=s.terminated, ended=s.ended, advantage=s.advantage,
            target=s.target, records=self._records, **episodes._asdict(), block_results=self._block_results,
            num_finished_blocks=self._num_finished_blocks, iteration=self._iteration, metrics=metrics, fault_rows=fault_rows,
            num_steps=len(s.reward), num_rows=self._num_rows, gamma=a.gamma, gae_lambda=a.gae_lambda,
            reward_scale=a.reward_scale,
        )  # fmt: skip


def pool_totals(totals: Tensor, num_steps: int) -> Tensor:
    """Returns the metrics `on_policy.ROLLOUT_METRICS` of all shards, (6,) float64.

    The variances are pooled as in Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing
    sample variances".

    Args:
        totals: (S, 10) float64, what the kernel wrote for each shard.
        num_steps: T.
    """
    sums = totals.sum(0)
    count, means, squares = totals[:, 5:6] * num_steps, totals[:, 6::2], totals[:, 7::2]  # of advantages and targets
    mean = (count * means).sum(0) / count.sum()
    advantages, targets = (squares + count * (means - mean).square()).sum(0).unbind()
    return torch.cat([episode_metrics(sums[:6]), (1.0 - advantages / targets).view(1)])
