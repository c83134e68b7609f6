"""Updates of several shards: each computes its own gradients, and the optimiser adds those of all shards in their order.

A kernel sums the partial gradients of each shard of this process, and writes the sums into the inboxes of all processes. The
optimiser of each process waits for the rows of its own inbox. Where the processes cannot write into each other's memory, a
collective of the library exchanges the rows instead. Both have the same bits, for any number of processes.

Letters: S shards, L shards of this process, U minibatches of an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.buffers.rollout_buffer import RolloutBuffer
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher
from gpuvec.learners.fused_ppo.fused_update import (
    ADVANTAGE_PARTS,
    OPTIMIZER_MEMBERS,
    SUM_THREADS,
    FusedUpdate,
    UpdateConfig,
    make_source,
    make_update_config,
    optimizer_sums,
    update_kernels,
)
from gpuvec.learners.fused_ppo.network_shape import NUM_SUMS, NetworkShape
from gpuvec.learners.shards.inboxes import Inboxes
from gpuvec.learners.shards.process_group import Processes

HALVES = 2  # of an inbox
SEND_MEMBERS = {
    "partial_gradients": "const float*", "loss_sums": "const float*", "num_launches": "const long long*", "rows": "float*",
    "inboxes": "const unsigned long long*", "rank": "i64",
}  # fmt: skip
INBOX_MEMBERS = {"inbox": "u64", "is_aborted": "const unsigned*"}


def row_size(shape: NetworkShape) -> int:
    """Returns the words of the row of a shard: the gradient, the sums of the loss, and zeros up to a multiple of four.

    Args:
        shape: of the network.
    """
    return -(-(shape.num_parameters() + NUM_SUMS) // 4) * 4


def inbox_words(shape: NetworkShape, num_shards: int) -> int:
    """Returns the words of an inbox.

    Args:
        shape: of the network.
        num_shards: S.
    """
    return HALVES * num_shards * row_size(shape)


def pooled_kernels(
    shape: NetworkShape, config: UpdateConfig, num_rows: int, num_processes: int, uses_inboxes: bool
) -> dict[str, CudaSource]:
    """Returns {name: kernel}: one that sends the sums of the shards of a process, and the optimiser.

    Args:
        shape: of the network.
        config: of the update of a shard.
        num_rows: rows that the optimiser adds, S unless a collective has added them.
        num_processes: the number of processes.
        uses_inboxes: whether sums are sent to inboxes; otherwise they are rows of an array.
    """
    sums, size = optimizer_sums(shape, config), row_size(shape)
    inbox = {"ROW_SIZE": size, "NUM_SHARDS": num_rows}
    send = sums | inbox | {"TO_INBOX": int(uses_inboxes), "NUM_PROCESSES": num_processes}
    add = sums | inbox | {"NUM_PARTIALS": num_rows, "PARTIAL_SIZE": size, "LOSS_SIZE": size, "FROM_INBOX": int(uses_inboxes)}
    threads = SUM_THREADS + 32
    return {
        "send_sums": make_source("send_sums", SEND_MEMBERS, send, threads),
        "optimizer": make_source("optimizer", OPTIMIZER_MEMBERS | (INBOX_MEMBERS if uses_inboxes else {}), add, threads),
    }


class PooledUpdate:
    """Updates a network from the rollouts of several shards.

    Args:
        updates: those of the L shards of this process, which share their parameters.
        num_shards: S.
        processes: the processes of the training.
        inboxes: those of all processes; None to exchange sums by collectives of the library.
    """

    def __init__(self, updates: Sequence[FusedUpdate], num_shards: int, processes: Processes, inboxes: Inboxes | None) -> None:
        self._updates, self._processes, self._inboxes = updates, processes, inboxes
        first, self._num_local = updates[0], len(updates)
        shape, config, device = first.shape, first.config, first.args.device
        count, size, shards = shape.num_parameters(), row_size(shape), (self._num_local, config.num_partials)
        self._partial_gradients = torch.zeros(*shards, count, device=device)
        self._loss_sums = torch.zeros(*shards, NUM_SUMS, device=device)
        for update, gradients, sums in zip(updates, self._partial_gradients, self._loss_sums, strict=True):
            update.partial_gradients, update.loss_sums = gradients, sums
        self._rows = torch.zeros(self._num_local, size, device=device)
        # The moments of the advantages of all shards, less the pivot, as `sum_advantages` writes those of one.
        self.advantage_sums = torch.zeros(first.num_updates, 3, ADVANTAGE_PARTS, device=device)
        self.pivot = torch.zeros(1, device=device)
        num_rows = num_shards if inboxes is not None or processes.deterministic else 1
        kernels = pooled_kernels(shape, config, num_rows, processes.size, inboxes is not None)
        self._launch = {name: make_tensor_launcher(kernel, parse_device(device)) for name, kernel in kernels.items()}

    def __call__(self, moments: Tensor, buffers: Sequence[RolloutBuffer], metrics: Tensor, fault_rows: Tensor) -> None:
        """Runs the epochs of minibatches over the records.

        Args:
            moments: (S, 3 * U + 1) float64: `advantage_moments` of each shard.
            buffers: the rollout of each shard of this process.
            metrics, fault_rows: as in `FusedUpdate`.
        """
        members = self.gradient_members(moments, buffers)
        for minibatch in range(self._updates[0].num_updates):
            self.send_sums(minibatch, members)
            self.optimize(minibatch, metrics, fault_rows)

    def gradient_members(self, moments: Tensor, buffers: Sequence[RolloutBuffer]) -> list[dict[str, Any]]:
        """Pools the moments of the advantages, and returns the arguments of the gradient kernel of each shard.

        Args:
            moments, buffers: (S, 3 * U + 1) and the rollouts, as in `__call__`.
        """
        pool_advantage_moments(moments, self.advantage_sums, self.pivot)
        pooled = {"advantage": self.pivot, "advantage_sums": self.advantage_sums}
        return [update.gradient_members(buffer) | pooled for update, buffer in zip(self._updates, buffers, strict=True)]

    def send_sums(self, minibatch: int, members: Sequence[dict[str, Any]]) -> None:
        """Computes the gradient of each shard of this process, and sends the sums to all processes.

        Args:
            minibatch: its number in the update.
            members: `gradient_members`.
        """
        for k, (update, gradient_members) in enumerate(zip(self._updates, members, strict=True)):
            # Before the first kernel of an update there are operations of PyTorch.
            update.launch_gradient(minibatch, gradient_members, dependent_launch=k > 0 or minibatch > 0)
        inboxes = self._inboxes
        target: dict[str, Any] = {"rows": self._rows} if inboxes is None else {"inboxes": inboxes.addresses}
        config = self._updates[0].config
        self._launch["send_sums"](
            config.optimizer_blocks * config.vectors_per_thread, self._num_local, dependent_launch=True,
            partial_gradients=self._partial_gradients, loss_sums=self._loss_sums, num_launches=self._updates[0].num_launches,
            rank=self._processes.rank, **target,
        )  # fmt: skip

    def optimize(self, minibatch: int, metrics: Tensor, fault_rows: Tensor) -> None:
        """Adds the sums of all shards, and takes a step of Adam.

        Args:
            minibatch: its number in the update.
            metrics, fault_rows: (6,) and (2,), as in `FusedUpdate`.
        """
        first, inboxes = self._updates[0], self._inboxes
        if inboxes is None:
            rows = self._processes.exchange(list(self._rows), not self._processes.deterministic)
            source = {"partial_gradients": rows, "loss_sums": rows.data_ptr() + 4 * first.shape.num_parameters()}
        else:
            source = {"inbox": inboxes.own, "is_aborted": inboxes.is_aborted}
        # A kernel of the library does not say when the next one may start.
        self._launch["optimizer"](
            first.config.optimizer_blocks, dependent_launch=inboxes is not None, minibatch=minibatch,
            advantage_sums=self.advantage_sums, **source, **first.optimizer_members(metrics, fault_rows),
        )  # fmt: skip


def advantage_moments(advantage_sums: Tensor, pivot: Tensor) -> Tensor:
    """Returns what a shard tells the others of its advantages, (3 * U + 1,) float64.

    Args:
        advantage_sums: (U, 3, ADVANTAGE_PARTS) float32 of `FusedUpdate`.
        pivot: () float32, which was subtracted from the advantages.
    """
    return torch.cat([advantage_sums.sum(-1, dtype=torch.float64).flatten(), pivot.double().view(1)])


def pool_advantage_moments(moments: Tensor, advantage_sums: Tensor, pivot: Tensor) -> None:
    """Writes the moments of all shards.

    Args:
        moments: (S, 3 * U + 1) float64: `advantage_moments` of each shard.
        advantage_sums: (U, 3, ADVANTAGE_PARTS) float32, receives the sums in its first part.
        pivot: (1,) float32, receives the mean of all advantages, which is subtracted from them.
    """
    counts, sums, squares = moments[:, :-1].view(len(moments), -1, 3).unbind(-1)  # (S, U)
    pivots = moments[:, -1:]
    mean = (sums + counts * pivots).sum() / counts.sum().clamp(min=1.0)
    pivot.copy_(mean)
    shift = pivots - pivot  # in float64, as `pivot` is rounded
    squares = squares + 2.0 * shift * sums + shift.square() * counts
    sums = sums + shift * counts
    advantage_sums[:, :, 0] = torch.stack([counts.sum(0), sums.sum(0), squares.sum(0)], -1)


def reason_too_large(shape: NetworkShape, args: PPOArgs, num_shards: int = 1) -> str:
    """Returns why the kernels do not fit on the device, or "" if they do.

    Args:
        shape: of the network.
        args: the settings, resolved.
        num_shards: shards of the training.
    """
    device, properties = parse_device(args.device), torch.cuda.get_device_properties(args.device)
    available = nvrtc.max_shared_memory(device)
    shared_bytes = max(shape.shared_bytes, shape.act_bytes)
    if shared_bytes > available:
        needed = f"a block of the kernels needs {shared_bytes:,} bytes of shared memory"
        return f"{needed}; {properties.name} has {available:,}"
    minibatch_size = args.steps_per_iteration // num_shards // args.num_minibatches
    config = make_update_config(shape, minibatch_size, properties.multi_processor_count)
    # The blocks of the optimiser wait for each other.
    kernels = update_kernels(shape, config) if num_shards == 1 else pooled_kernels(shape, config, num_shards, 1, True)
    if config.optimizer_blocks > nvrtc.max_resident_blocks(kernels["optimizer"], device):
        return f"the optimiser's {config.optimizer_blocks} blocks do not run on {properties.name} at the same time"
    return ""
