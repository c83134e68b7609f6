"""PyTorch's process-wide settings, changed only during a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_settings(device: str, threads: int) -> Iterator[None]:
    """Sets the number of `threads` on a CPU, and TF32 matrix products and deterministic convolutions on a GPU.

    All settings are restored at the end.

    Args:
        device: "cpu" or "cuda:<index>".
        threads: of PyTorch operations on a CPU.
    """
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    was_deterministic = torch.backends.cudnn.deterministic
    try:
        if device == "cpu":
            torch.set_num_threads(threads)
        else:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.deterministic = True
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.set_num_threads(before[1])
        torch.backends.cudnn.deterministic = was_deterministic
