"""PyTorch's process-wide settings, changed for the time of a training only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def settings(device: str, threads: int) -> Iterator[None]:
    """On a CPU that many threads; on a GPU products of matrices in TF32, whose 10-bit mantissa is enough to learn with."""
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(threads)
        else:
            torch.set_float32_matmul_precision("high")
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.set_num_threads(before[1])
