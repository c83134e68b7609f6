"""Fused rollouts: the steps in one kernel, the values of all observations in another, and the estimates of both in a third.

Environments of several agents are stepped by their own kernels, with the actions of one kernel for each policy.

Letters: T steps, E environments, R rows, D observation features, K action components, N outputs of the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.buffers.rollout_buffer import RolloutBuffer
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics, episode_metrics
from gpuvec.learners.fused_ppo.fused_update import OBSERVATION_MEMBERS, FusedUpdate
from gpuvec.learners.fused_ppo.linked_env import bounds_and_starts, link_env
from gpuvec.learners.fused_ppo.network_shape import SOURCE_FOLDER, NetworkShape
from gpuvec.learners.sampling.action_kernels import DRAWS_PER_STREAM, FIRST_DRAW

ROWS_PER_WARP = (8, 16, 32)
MAX_ACT_BLOCKS = 4  # of the kernel of actions, per multiprocessor; a block has the weights in shared memory
SCHEDULERS = 4  # warp schedulers of a multiprocessor

ROLLOUT_MEMBERS = {
    "parameters": "const float*", "iteration": "const long long*", "clock": "const unsigned*", "episode_start": "bool*",
    "obs": "float*", "action": "void*", "log_prob": "float*", "reward": "float*", "terminated": "bool*", "truncated": "bool*",
    "low": "const float*", "high": "const float*", "moments": "const float*", "num_steps": "i64", "num_rows": "i64",
    "seed": "u64",
}  # fmt: skip
ACT_MEMBERS = {
    "parameters": "const float*", "iteration": "const long long*", "obs": "const float*", "action_mask": "const bool*",
    "action": "void*", "log_prob": "float*", "env_action": "void*", "low": "const float*", "high": "const float*",
    "step": "i64", "first_row": "i64", "seed": "u64", **OBSERVATION_MEMBERS,
}  # fmt: skip
VALUE_MEMBERS = {
    "parameters": "const float*", "obs": "const float*", "final_obs": "const float*", "ended": "const bool*",
    "terminated": "const bool*", "value": "float*", "final_value": "float*", "clock": "unsigned*",
    "num_clocks": "i64", "num_steps": "i64", "rows_per_end": "i64", **OBSERVATION_MEMBERS,
}  # fmt: skip
ESTIMATE_THREADS = 32  # per block, since there are few rows, and the kernel is bound by memory latency
NUM_TOTALS = 10  # of a shard: six sums over rows, then moments of advantages and targets
BLOCK_RESULT_WORDS = 20  # words of 4 bytes of a `BlockResult` of estimate.cu
ESTIMATE_MEMBERS = {
    "obs": "const float*", "action": "const void*", "log_prob": "const float*", "reward": "const float*",
    "value": "const float*", "final_value": "const float*", "terminated": "const bool*", "ended": "const bool*",
    "advantage": "float*", "target": "float*", "records": "float*", "running_return": "double*", "running_length": "double*",
    "last_return": "double*", "block_results": "void*",
    "num_finished_blocks": "unsigned*", "iteration": "long long*", "metrics": "double*", "fault_rows": "long long*",
    "moments": "const float*", "num_steps": "i64", "num_rows": "i64", "gamma": "double", "gae_lambda": "double",
    "reward_scale": "double",
}  # fmt: skip


def rollout_kernel(
    shape: NetworkShape,
    env_functions: LinkedFunctions,
    rows: int,
    action_starts: tuple[int, ...],
    stream: int = 0,
    is_shard: bool = False,
) -> CudaSource:
    """Returns the kernel of a rollout.

    Args:
        shape: of the policy.
        env_functions: the environment's functions, which are linked with the kernel.
        rows: environments per warp, one of `ROWS_PER_WARP`.
        action_starts: the smallest value of each component of a discrete action.
        stream: number of the random-number stream from which actions are drawn.
        is_shard: whether the environments are those of a shard, and have a member `first_row`.
    """
    members = ROLLOUT_MEMBERS | {f"env_{name}": "u64" for name in env_functions.members}
    members |= {"first_row": "i64"} if is_shard else {}
    shared_bytes = shape.rollout_bytes(rows)
    constants = shape.constants | env_functions.constants | {"WARPS": shape.forward_warps, "SHARED_BYTES": shared_bytes}
    constants |= {"TILES": -(-rows // 16), "EIGHT_ROWS": int(rows == 8)}
    constants |= {
        "ENV_BATCH": ", ".join(f"b.env_{name}" for name in env_functions.members),
        "ACTION_STARTS": "{" + ", ".join(map(str, action_starts)) + "}",
        "FIRST_DRAW": f"{FIRST_DRAW + stream * DRAWS_PER_STREAM}u",
        "FIRST_ROW": "b.first_row" if is_shard else 0,
    }
    names = tuple(members.items()), tuple(constants.items())
    threads = 32 * shape.forward_warps
    return CudaSource(SOURCE_FOLDER / "rollout.cu", "rollout", *names, threads, shared_bytes, env_functions.code)


def act_kernel(shape: NetworkShape, action_starts: tuple[int, ...]) -> CudaSource:
    """Returns the kernel of the actions of a step.

    Args:
        shape: of the policy.
        action_starts: the smallest value of each component of a discrete action.
    """
    constants = shape.constants | {"WARPS": shape.forward_warps, "SHARED_BYTES": shape.act_bytes, "TILES": shape.act_tiles}
    constants |= {"ACTION_STARTS": "{" + ", ".join(map(str, action_starts)) + "}", "FIRST_DRAW": f"{FIRST_DRAW}u"}
    names = tuple(ACT_MEMBERS.items()), tuple(constants.items())
    return CudaSource(SOURCE_FOLDER / "act.cu", "act", *names, 32 * shape.forward_warps, shape.act_bytes)


def value_kernel(shape: NetworkShape, tiles: int) -> CudaSource:
    """Returns the kernel that computes the value function of a network `shape` for `tiles` of 16 rows per warp."""
    constants = shape.constants | {"WARPS": shape.forward_warps, "TILES": tiles}
    names = tuple(VALUE_MEMBERS.items()), tuple(constants.items())
    return CudaSource(SOURCE_FOLDER / "value.cu", "value", *names, 32 * shape.forward_warps, shape.weight_bytes(True))


def rows_per_warp(num_envs: int, multiprocessors: int) -> int:
    """Returns the number of environments per warp.

    It is small if the GPU is not full, because the latency of a warp then determines the time of a step. It is the largest one
    if there are more than two warps per scheduler, so that weights are read less often.

    Args:
        num_envs: E.
        multiprocessors: of the GPU.
    """
    max_warps = 2 * SCHEDULERS * multiprocessors
    return next((rows for rows in ROWS_PER_WARP if num_envs <= rows * max_warps), ROWS_PER_WARP[-1])


class FusedRollout:
    """Runs rollouts with a policy and computes the values of their observations.

    Args:
        update: has the parameters of the network, and the moments of observations.
        rollout: the environment and the storage that is written.
        iteration: () int64 on the device, the number of rollouts before this one, on which the actions depend.
        seed: of the actions, as in `sampling.Sampler`.
        stream: as in `sampling.Sampler`.
        first_row: the number of the first row, for the environments of one of several shards; None for all environments.
    """

    def __init__(
        self,
        update: FusedUpdate,
        rollout: EnvRollout,
        iteration: Tensor,
        seed: int,
        stream: int,
        first_row: int | None = None,
    ) -> None:
        env, shape = rollout.env.unwrapped, update.shape
        self._update, self._rollout, self._iteration, self._seed = update, rollout, iteration, seed
        self._num_rows, self._device = env.num_envs, parse_device(env.device)
        env_functions, self._env_members = link_env(env, rollout.final_obs, rollout.ended)
        self._clock = env.simulation.buffers["clock"]
        self._bounds, action_starts = bounds_and_starts(env.single_action_space, shape.action_size, env.device)
        multiprocessors = torch.cuda.get_device_properties(env.device).multi_processor_count
        rows = min(rows_per_warp(self._num_rows, multiprocessors), shape.max_forward_rows)
        self._blocks = -(-self._num_rows // (shape.forward_warps * rows))
        self._first_row = {} if first_row is None else {"first_row": first_row}
        kernel = rollout_kernel(shape, env_functions, rows, action_starts, stream, is_shard=first_row is not None)
        self._launch_rollout = make_tensor_launcher(kernel, self._device)
        self._values = FusedValues(update, env.device)

    def __call__(self, action: Tensor, log_prob: Tensor, value: Tensor, final_value: Tensor) -> None:
        """Runs a rollout.

        Args:
            action: (T, R) or (T, R, K), receives the actions.
            log_prob: (T, R) float32, receives their log-probabilities.
            value: (T + 1, R) float32, receives the values of the observations.
            final_value: (T, R) float32, receives the values of the final observations of truncated episodes.
        """
        r, update = self._rollout, self._update
        self._launch_rollout(
            self._blocks, parameters=update.parameters, iteration=self._iteration, clock=self._clock.data.ptr,
            episode_start=r.episode_start, obs=r.obs, action=action, log_prob=log_prob, reward=r.reward,
            terminated=r.terminated, truncated=r.truncated, moments=update.moments, num_steps=r.num_steps,
            num_rows=self._num_rows, seed=self._seed, **self._bounds, **self._env_members, **self._first_row,
        )  # fmt: skip
        self._values(
            update.observation_members(), r.num_steps, dependent_launch=True, obs=r.obs, final_obs=r.final_obs, ended=r.ended,
            terminated=r.terminated, value=value, final_value=final_value, clock=self._clock.data.ptr,
            num_clocks=self._clock.size,
        )  # fmt: skip


class FusedValues:
    """Computes the values of observations.

    Args:
        update: has the parameters of the network.
        device: "cuda:<index>".
    """

    def __init__(self, update: FusedUpdate, device: str) -> None:
        tiles = min(2 if update.shape.padded_inputs <= 64 else 1, update.shape.max_forward_rows // 16)
        self._update = update
        self._launch = make_tensor_launcher(value_kernel(update.shape, tiles), parse_device(device))
        self._num_blocks = 4 * torch.cuda.get_device_properties(device).multi_processor_count

    def __call__(self, observation_members: Mapping[str, Any], num_steps: int, rows_per_end: int = 1, **members: Any) -> None:
        """Writes V of all observations, and of the final observations of truncated episodes, where these are given.

        Args:
            observation_members: those of `FusedUpdate`.
            num_steps: T.
            rows_per_end: rows that have one element of `ended`.
            members: `obs`, (T + 1, ...) float32, and `value`, (T + 1, R) float32; `final_obs`, (T, ...) float32,
                `final_value`, (T, R) float32, and flags of which these are defined: `ended`, bool, without `terminated`,
                (T, R) bool.
        """
        self._launch(
            self._num_blocks, parameters=self._update.parameters, num_steps=num_steps, rows_per_end=rows_per_end,
            **observation_members, **members,
        )  # fmt: skip


class FusedActions:
    """Draws the actions of the rows of a policy, by one kernel in each step.

    Args:
        update: has the parameters of the network, and the moments of observations.
        buffer: the rollout, whose actions and log-probabilities are written.
        action_space: of one row.
        iteration, seed, first_row: as in `FusedRollout`.
        device: "cuda:<index>".
    """

    def __init__(
        self,
        update: FusedUpdate,
        buffer: RolloutBuffer,
        action_space: gym.Space[Any],
        iteration: Tensor,
        seed: int,
        first_row: int,
        device: str,
    ) -> None:
        self._update, self._buffer, shape = update, buffer, update.shape
        self._bounds, starts = bounds_and_starts(action_space, shape.action_size, device)
        self._key = {"iteration": iteration, "seed": seed, "first_row": first_row}
        self._env_action = torch.zeros_like(buffer.action[0])
        kernel = act_kernel(shape, starts)
        self._launch = make_tensor_launcher(kernel, parse_device(device))
        rows_per_block = 16 * shape.act_tiles * shape.forward_warps
        most = MAX_ACT_BLOCKS * torch.cuda.get_device_properties(device).multi_processor_count
        self._num_blocks = min(-(-buffer.action.shape[1] // rows_per_block), most)

    def __call__(self, t: int, obs: Tensor, observation_members: Mapping[str, Any]) -> Tensor:
        """Draws the actions of step `t`; returns them as the environment takes them, (R, ...).

        Args:
            t: the step.
            obs: the observations before it, those of the rows or of the environment, float32.
            observation_members: those of `FusedUpdate`.
        """
        buffer = self._buffer
        self._launch(
            self._num_blocks, parameters=self._update.parameters, obs=obs, action=buffer.action[t],
            action_mask=0 if buffer.action_mask is None else buffer.action_mask[t], log_prob=buffer.log_prob[t],
            env_action=self._env_action, step=t, **self._key, **self._bounds, **observation_members,
        )  # fmt: skip
        return self._env_action


def estimate_kernel(shape: NetworkShape, is_shard: bool = False) -> CudaSource:
    """Returns the kernel.

    Args:
        shape: of the network.
        is_shard: whether it writes the totals of one of several shards, see `pool_totals`, in place of metrics.
    """
    constants = shape.constants | {"THREADS": ESTIMATE_THREADS, "IS_SHARD": int(is_shard)}
    names = tuple(ESTIMATE_MEMBERS.items()), tuple(constants.items())
    return CudaSource(SOURCE_FOLDER / "estimate.cu", "estimate", *names, ESTIMATE_THREADS)


class FusedEstimate:
    """Estimates advantages and targets of rollouts of `rows` environments.

    Args:
        args: the settings, resolved.
        rows: R.
        update: has the records, which are written, and the moments of observations.
        iteration: () int64 on the device, which is incremented.
        is_shard: whether the environments are those of one of several shards.
    """

    def __init__(self, update: FusedUpdate, args: PPOArgs, rows: int, iteration: Tensor, is_shard: bool = False) -> None:
        self._args, self._num_rows, self._update, self._iteration = args, rows, update, iteration
        self._launch = make_tensor_launcher(estimate_kernel(update.shape, is_shard), parse_device(args.device))
        self._num_blocks = -(-rows // ESTIMATE_THREADS)
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
            target=s.target, records=self._update.records,
            moments=self._update.moments, **episodes._asdict(), block_results=self._block_results,
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
