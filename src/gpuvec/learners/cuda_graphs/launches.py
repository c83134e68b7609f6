"""Kernels of rows on tensors: checked, and launched on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device import parse_device as named_device
from gpuvec.engine.backends.elementwise import Elementwise, make_elementwise_launcher

Expected = tuple[tuple[int, ...], torch.dtype]


class Launches:
    """Launches on "cpu" or "cuda:<index>", where the tensors are; on "simulator" to debug kernels."""

    def __init__(self, device: str) -> None:
        self._device: Device = named_device(device)
        self.place = str(self._device) if self._device.kind == "cuda" else "cpu"
        self._ready: dict[Elementwise, Callable[..., None]] = {}

    def __call__(
        self,
        work: Elementwise,
        rows: int,
        tensors: Mapping[str, Tensor | None],
        expected: Mapping[str, Expected],
        numbers: Sequence[int] = (),
    ) -> None:
        """Does the work to `rows` rows.

        Args:
            work: its members are the tensors' names and those of the numbers, in this order.
            rows: how many.
            tensors: {name: tensor}; None for a member that the work does not look at.
            expected: {name: (shape, dtype)}.
            numbers: the members that are no tensors.

        Raises:
            TypeError, ValueError: a tensor of another dtype; of another shape, with gaps, or elsewhere.
        """
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            shape, dtype = expected[name]
            if tensor.dtype != dtype:
                raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}.")
            if tensor.shape != shape or not tensor.is_contiguous() or str(tensor.device) != self.place:
                given = f"{tuple(tensor.shape)} on {tensor.device}" + ("" if tensor.is_contiguous() else ", not contiguous")
                raise ValueError(f"{name} must be C-contiguous, of shape {shape} on {self.place}, got {given}.")
        launch = self._ready.get(work)
        if launch is None:
            launch = self._ready[work] = make_elementwise_launcher(work, self._device)
        stream = torch.cuda.current_stream(self._device.ordinal).cuda_stream if self._device.kind == "cuda" else 0
        places = (0 if tensor is None else tensor.data_ptr() for tensor in tensors.values())
        with self._device.current():
            launch(stream, *places, *numbers, rows)
