"""Launches of CUDA C++ kernels on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import Device


def make_tensor_launcher(kernel: CudaSource, device: Device) -> Callable[..., None]:
    """Returns `launch(blocks, ..., dependent_launch=False, **members)`, which launches on torch's current stream.

    Args:
        kernel: the source of the kernel.
        device: a GPU.

    A member is a tensor or a number; with `dependent_launch`, the launch is a programmatic dependent launch.
    """
    launch, ordinal = nvrtc.make_launcher(kernel, device), device.ordinal

    def start(*grid: int, dependent_launch: bool = False, **arguments: Any) -> None:
        members = {name: x.data_ptr() if isinstance(x, Tensor) else x for name, x in arguments.items()}
        with device.current():
            launch(torch.cuda.current_stream(ordinal).cuda_stream, grid, dependent_launch=dependent_launch, **members)

    return start
