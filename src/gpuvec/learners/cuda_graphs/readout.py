"""Asynchronous copies of a tensor from the device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Readout:
    """Reads one tensor repeatedly while the device continues to compute.

    On a GPU each read is a copy to pinned memory on the current stream; on a CPU it is immediate.

    Args:
        source: a tensor of any shape (...); it is written on the stream on which reads are started.
        depth: the largest number of pending reads.
    """

    def __init__(self, source: Tensor, depth: int = 2) -> None:
        self._source = source
        self._copies = [torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda) for _ in range(depth)]
        self._events = [torch.cuda.Event() for _ in range(depth)] if source.is_cuda else []
        self._num_started = self._num_taken = 0

    @property
    def pending(self) -> int:
        """The number of pending reads, which were started and not taken."""
        return self._num_started - self._num_taken

    def start(self) -> None:
        """Starts a read of the values that the source has at this point of the stream.

        Raises:
            RuntimeError: `depth` reads are pending.
        """
        if self.pending == len(self._copies):
            raise RuntimeError(f"{self.pending} reads are pending, and no more are possible: take one first.")
        slot = self._num_started % len(self._copies)
        self._copies[slot].copy_(self._source, non_blocking=True)
        if self._events:
            self._events[slot].record(torch.cuda.current_stream(self._source.device))
        self._num_started += 1

    def take(self) -> Tensor:
        """Waits for the oldest read and returns its values on the host, (...); they are overwritten `depth` reads later.

        Raises:
            RuntimeError: no read is pending.
        """
        if not self.pending:
            raise RuntimeError("no read is pending: start one first.")
        slot = self._num_taken % len(self._copies)
        if self._events:
            self._events[slot].synchronize()
        self._num_taken += 1
        return self._copies[slot]
