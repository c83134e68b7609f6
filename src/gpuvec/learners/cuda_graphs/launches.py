"""Launches of elementwise kernels on tensors, after a check of the arguments, on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gpuvec.engine.backends.device import Device, parse_device
from gpuvec.engine.backends.elementwise import make_elementwise_launcher
from gpuvec.engine.backends.elementwise_operation import Elementwise

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
