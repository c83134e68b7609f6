"""Launches of kernels on tensors, on torch's current stream: elementwise ones after a check of the arguments, and CUDA C++."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpuvec.engine.backends.device import Device, parse_device
from gpuvec.engine.backends.elementwise import make_elementwise_launcher
from gpuvec.engine.backends.elementwise_operation import Elementwise

if TYPE_CHECKING:
    from gpuvec.engine.backends.cuda.nvrtc import CudaSource

TensorSpec = tuple[tuple[int, ...], torch.dtype]


class ElementwiseLauncher:
    """Launches elementwise kernels on the `device` of the tensors: "cpu", "cuda:<index>", or "simulator" to debug kernels."""

    def __init__(self, device: str) -> None:
        self._device: Device = parse_device(device)
        self.tensor_device = str(self._device) if self._device.kind == "cuda" else "cpu"
        self._launchers: dict[Elementwise, Callable[..., None]] = {}

    def __call__(
        self,
        kernel: Elementwise,
        rows: int,
        tensors: Mapping[str, Tensor | None],
        expected: Mapping[str, TensorSpec],
        numbers: Sequence[int] = (),
    ) -> None:
        """Launches `kernel` for `rows` rows.

        Args:
            kernel: the kernel, whose members are the names of the tensors and then of the numbers.
            rows: number of rows.
            tensors: {name: tensor}; None for a member that the kernel does not read.
            expected: {name: (shape, dtype)}.
            numbers: values of the members that are not tensors.

        Raises:
            TypeError: a tensor of another dtype.
            ValueError: a tensor of another shape, not contiguous, or on another device.
        """
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            shape, dtype = expected[name]
            if tensor.dtype != dtype:
                raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}.")
            if tensor.shape != shape or not tensor.is_contiguous() or str(tensor.device) != self.tensor_device:
                actual = f"{tuple(tensor.shape)} on {tensor.device}" + ("" if tensor.is_contiguous() else ", not contiguous")
                raise ValueError(f"{name} must be C-contiguous, of shape {shape} on {self.tensor_device}, got {actual}.")
        launch = self._launchers.get(kernel)
        if launch is None:
            launch = self._launchers[kernel] = make_elementwise_launcher(kernel, self._device)
        stream = torch.cuda.current_stream(self._device.ordinal).cuda_stream if self._device.kind == "cuda" else 0
        addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors.values())
        with self._device.current():
            launch(stream, *addresses, *numbers, rows)


def make_tensor_launcher(kernel: CudaSource, device: Device) -> Callable[..., None]:
    """Returns `launch(*grid, dependent_launch=False, **members)`, which launches on torch's current stream.

    The grid is the number of blocks in each dimension, and a member is a tensor or a number. With `dependent_launch` it is a
    programmatic dependent launch.

    Args:
        kernel: the source of the kernel.
        device: a GPU.
    """
    # Imported here because it imports the CUDA compiler, which a CPU does not need.
    from gpuvec.engine.backends.cuda import nvrtc

    launch_on_stream, ordinal = nvrtc.make_launcher(kernel, device), device.ordinal

    def launch(*grid: int, dependent_launch: bool = False, **members: Any) -> None:
        addresses = {name: x.data_ptr() if isinstance(x, Tensor) else x for name, x in members.items()}
        stream = torch.cuda.current_stream(ordinal).cuda_stream
        with device.current():
            launch_on_stream(stream, grid, dependent_launch=dependent_launch, **addresses)

    return launch


@lru_cache(maxsize=256)
def cached_launchers(
    make_kernels: Callable[..., Mapping[str, CudaSource]], device: torch.device, *arguments: Hashable
) -> dict[str, Callable[..., None]]:
    """Returns {name: launcher} of kernels, which are loaded once for a device; see `make_tensor_launcher`.

    Args:
        make_kernels: returns {name: kernel}.
        device: a GPU.
        arguments: of `make_kernels`.
    """
    gpu = parse_device(str(device))
    return {name: make_tensor_launcher(kernel, gpu) for name, kernel in make_kernels(*arguments).items()}
