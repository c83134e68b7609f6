"""PyTorch's process-wide settings, changed only during a training, and the current device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def current_device(device: str) -> AbstractContextManager[Any]:
    """Makes a GPU the current device during a block, so that the process needs no memory on other GPUs.

    CuPy sets the previous device again after each of its own blocks. Since CUDA 12 that creates a context there, of about
    500 MiB, unless the previous device is this one. PyTorch sets a device without a context only when it is used.

    Args:
        device: "cpu" or "cuda:<index>".
    """
    return torch.cuda.device(device) if device.startswith("cuda") else nullcontext()


@contextmanager
def torch_settings(device: str, threads: int) -> Iterator[None]:
    """Sets the number of `threads` on a CPU; on a GPU the current device, TF32 matrix products and deterministic convolutions.

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
        with current_device(device):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.set_num_threads(before[1])
        torch.backends.cudnn.deterministic = was_deterministic
