"""Kernels of this folder, launched on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import Device


def launcher(kernel: CudaSource, device: Device) -> Callable[..., None]:
    """`launch(blocks, ..., early=False, **members)` on torch's current stream; a member is a tensor, or a number."""
    launch, ordinal = nvrtc.make_launcher(kernel, device), device.ordinal

    def start(*grid: int, early: bool = False, **given: Any) -> None:
        members = {name: x.data_ptr() if isinstance(x, Tensor) else x for name, x in given.items()}
        with device.current():
            launch(torch.cuda.current_stream(ordinal).cuda_stream, grid, early=early, **members)

    return start
