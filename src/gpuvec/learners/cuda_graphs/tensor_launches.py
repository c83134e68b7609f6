"""Launches of CUDA C++ kernels with tensors as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import Device


def make_tensor_launcher(kernel: CudaSource, device: Device) -> Callable[..., None]:
    """Returns `launch(*grid, dependent_launch=False, **members)`, which launches on torch's current stream.

    The grid is the number of blocks in each dimension, and a member is a tensor or a number. With `dependent_launch` it is a
    programmatic dependent launch.

    Args:
        kernel: the source of the kernel.
        device: a GPU.
    """
    launch_on_stream, ordinal = nvrtc.make_launcher(kernel, device), device.ordinal

    def launch(*grid: int, dependent_launch: bool = False, **members: Any) -> None:
        addresses = {name: x.data_ptr() if isinstance(x, Tensor) else x for name, x in members.items()}
        stream = torch.cuda.current_stream(ordinal).cuda_stream
        with device.current():
            launch_on_stream(stream, grid, dependent_launch=dependent_launch, **addresses)

    return launch
