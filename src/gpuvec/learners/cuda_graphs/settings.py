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
def ordinary_tensors() -> Iterator[None]:
    """A block, or a decorated function, in which new tensors are float32 by default and can be used in any mode of autograd.

    Networks, also those of a user's body, and what learners compute have float32 numbers, whatever `torch.set_default_dtype`
    says outside. A tensor that is made in inference mode could not be written outside of it.
    """
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False):
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def torch_settings(device: str, threads: int) -> Iterator[None]:
    """Sets the number of `threads` on a CPU; on a GPU the current device, TF32 matrix products and deterministic convolutions.

    Tensors are float32 by default. All settings are restored at the end.

    Args:
        device: "cpu" or "cuda:<index>".
        threads: of PyTorch operations on a CPU.

    Raises:
        RuntimeError: gradients are off, by `torch.no_grad` or `torch.inference_mode`.
    """
    if not torch.is_grad_enabled():
        mode = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
        raise RuntimeError(f"a training computes gradients, which torch.{mode} turns off here: train outside of it.")
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    was_deterministic = torch.backends.cudnn.deterministic
    try:
        if device == "cpu":
            torch.set_num_threads(threads)
        else:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.deterministic = True
        with current_device(device), ordinary_tensors():
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.set_num_threads(before[1])
        torch.backends.cudnn.deterministic = was_deterministic
