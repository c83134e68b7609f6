"""PyTorch as the output framework: the one module of this layer that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from gpuvec.engine.backends.device import Device
from gpuvec.vector.framework import refuse_without_memory

_NAMES = {
    torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8", torch.float32: "float32", torch.float64: "float64",
    torch.bool: "bool", torch.int16: "int16", torch.int8: "int8", torch.float16: "float16", torch.bfloat16: "bfloat16",
}  # fmt: skip

ROWS_AT_ONCE = 64


class Torch:
    """Tensors on the env's device; kernels run on torch's current stream, which each call reads anew."""

    copies = False
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

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """See `Framework.rows`; made some at a time: a tensor costs 0.5 us, and most when many live.

        No views, which would share one version counter: a reward changed in place would then be an error in the gradient
        of all others. The `unsafe` split makes tensors of their own over the same memory, and is the cheapest besides.
        """
        whole, size = self.wrap(slab).view(-1, *shape[1:]), shape[0]

        def some(first: int) -> Any:
            count = min(ROWS_AT_ONCE, steps - first)
            return torch.unsafe_split_with_sizes(whole[first * size : (first + count) * size], [size] * count)

        return chain.from_iterable(map(some, range(0, steps, ROWS_AT_ONCE)))

    def stream(self) -> int:
        """The handle of torch's current stream on the env's device."""
        return self._raw_stream(self._index) if self._index >= 0 else 0

    def capturing(self) -> bool:
        """Whether torch is capturing a graph."""
        return self._index >= 0 and torch._C._cuda_isCurrentStreamCapturing()

    def pointer(self, array: Any) -> tuple[int, str, tuple[int, ...], Any] | None:
        """See `Framework.pointer`."""
        if not isinstance(array, torch.Tensor):
            return None
        index = array.get_device()
        if index != self._index or array.layout is not torch.strided or array.is_meta:  # a meta tensor has the CPU's index
            refuse_without_memory(array)
            if index != self._index:
                return None
        if not array.is_contiguous():
            array = array.contiguous()
        return array.data_ptr(), _NAMES.get(array.dtype) or str(array.dtype), array.shape, array
