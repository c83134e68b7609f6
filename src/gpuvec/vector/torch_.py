"""PyTorch as the output framework: the one module of this layer that imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from gpuvec.engine.device import Device

_NAMES = {
    torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8", torch.float32: "float32", torch.float64: "float64",
    torch.bool: "bool", torch.int16: "int16", torch.int8: "int8", torch.float16: "float16", torch.bfloat16: "bfloat16",
}  # fmt: skip


class Torch:
    """Tensors on the env's device; kernels run on torch's current stream, which each call reads anew."""

    alignment = 1

    def __init__(self, device: Device) -> None:
        self.device, self._index = device, device.ordinal if device.kind == "cuda" else -1
        if device.kind == "cuda":
            torch.cuda.init()
            # The raw getter costs 0.07 us, `torch.cuda.current_stream()` 4.2.
            self._raw_stream = torch._C._cuda_getCurrentRawStream

    def wrap(self, array: Any) -> Any:
        """The memory as a tensor."""
        return from_dlpack(array) if self._index >= 0 else torch.from_numpy(array)

    def rows(self, slab: Any) -> Sequence[Any]:
        """Views of the rows of the first axis."""
        return self.wrap(slab).unbind(0)  # type: ignore[no-any-return]  # from_dlpack has no types

    def stream(self) -> int:
        """The handle of torch's current stream on the env's device."""
        return self._raw_stream(self._index) if self._index >= 0 else 0

    def capturing(self) -> bool:
        """Whether torch is capturing a graph."""
        return self._index >= 0 and torch._C._cuda_isCurrentStreamCapturing()

    def pointer(self, array: Any) -> tuple[int, str, tuple[int, ...], Any] | None:
        """See `Framework.pointer`."""
        if not isinstance(array, torch.Tensor) or array.get_device() != self._index:
            return None
        if not array.is_contiguous():
            array = array.contiguous()
        return array.data_ptr(), _NAMES.get(array.dtype, str(array.dtype)), array.shape, array
