"""Copies of a tensor from the device to the host that nothing waits for until the host takes them."""

from __future__ import annotations

import torch
from torch import Tensor


class Readout:
    """Reads one tensor again and again, so that the device computes on while earlier values are on their way.

    On a GPU a copy goes to pinned memory, behind what is on the current stream; on a CPU it is made at once.

    Args:
        source: any tensor; whatever writes it is on the stream on which reads are started.
        depth: how many reads may be under way.
    """

    def __init__(self, source: Tensor, depth: int = 2) -> None:
        self._source = source
        self._copies = [torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda) for _ in range(depth)]
        self._events = [torch.cuda.Event() for _ in range(depth)] if source.is_cuda else []
        self._started = self._taken = 0

    @property
    def waiting(self) -> int:
        """How many reads were started and not taken."""
        return self._started - self._taken

    def start(self) -> None:
        """Starts a read of the values that the source has at this point of the stream.

        Raises:
            RuntimeError: `depth` reads are under way.
        """
        if self.waiting == len(self._copies):
            raise RuntimeError(f"{self.waiting} reads are under way, as many as there is room for: take one first.")
        slot = self._started % len(self._copies)
        self._copies[slot].copy_(self._source, non_blocking=True)
        if self._events:
            self._events[slot].record(torch.cuda.current_stream(self._source.device))
        self._started += 1

    def take(self) -> Tensor:
        """Waits for the oldest read and returns its values, on the host; they hold until `depth` reads later.

        Raises:
            RuntimeError: no read is under way.
        """
        if not self.waiting:
            raise RuntimeError("no read is under way: start one first.")
        slot = self._taken % len(self._copies)
        if self._events:
            self._events[slot].synchronize()
        self._taken += 1
        return self._copies[slot]
