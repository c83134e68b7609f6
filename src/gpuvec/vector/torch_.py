"""PyTorch as the output framework; no other module of this package imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import LOWEST_ADDRESS
from gpuvec.vector.framework import ArrayPointer, Framework
from gpuvec.vector.native_arrays import check_has_memory

_DTYPE_NAMES = {
    torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8", torch.float32: "float32", torch.float64: "float64",
    torch.bool: "bool", torch.int16: "int16", torch.int8: "int8", torch.float16: "float16", torch.bfloat16: "bfloat16",
}  # fmt: skip

TENSORS_PER_SPLIT = 64


class TorchTensors(Framework):
    """Tensors on the environment's device; kernels run on torch's current stream, which is read in every call.

    Args:
        device: the device of the tensors.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._index = device.ordinal if device.kind == "cuda" else -1
        if device.kind == "cuda":
            torch.cuda.init()
            # This getter takes 0.07 us, and `torch.cuda.current_stream()` 4.2 us.
            self._raw_stream = torch._C._cuda_getCurrentRawStream

    def wrap(self, array: Any) -> Any:
        """Returns a tensor over the memory of `array`."""
        # Tensors that were made in inference mode could not be used outside of it.
        with torch.inference_mode(False):
            return from_dlpack(array) if self._index >= 0 else torch.from_numpy(array)

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """Yields the `steps` tensors of `shape` in `slab`, as `Framework.rows` describes.

        The tensors are no views, because views share one version counter: changing one reward in place would make autograd
        refuse all the others. `unsafe_split_with_sizes` creates independent tensors over the same memory and is also the
        fastest way, with 0.5 us for each tensor. Splitting a few tensors at a time is faster than splitting all at once.
        """
        tensor, num_rows = self.wrap(slab).view(-1, *shape[1:]), shape[0]

        @torch.inference_mode(False)
        def split_next(first: int) -> Any:
            count = min(TENSORS_PER_SPLIT, steps - first)
            part = tensor[first * num_rows : (first + count) * num_rows]
            return torch.unsafe_split_with_sizes(part, [num_rows] * count)

        return chain.from_iterable(map(split_next, range(0, steps, TENSORS_PER_SPLIT)))

    def stream(self) -> int:
        """Returns the handle of torch's current stream on the environment's device; 0 on a CPU."""
        return self._raw_stream(self._index) if self._index >= 0 else 0

    def capturing(self) -> bool:
        """Returns whether torch is capturing a graph."""
        return self._index >= 0 and torch._C._cuda_isCurrentStreamCapturing()

    def pointer(self, array: Any) -> ArrayPointer | None:
        """Returns the pointer to `array`, or None, as `Framework.pointer` describes."""
        is_plain = type(array) is torch.Tensor
        if not is_plain and not isinstance(array, torch.Tensor):
            return None
        try:
            index = array.get_device()
            # A meta tensor has the CPU's index, and a fake tensor is of a subclass.
            if index != self._index or array.layout is not torch.strided or array.is_meta or not is_plain:
                check_has_memory(array)
                if index != self._index:
                    return None
            # The address of a view of freed memory is its offset, so that it alone shows nothing.
            end = array.storage_offset() * array.element_size() + array.nbytes
            is_stored = array.data_ptr() >= LOWEST_ADDRESS and array.untyped_storage().nbytes() >= end
            if not is_stored or array.is_neg() or not array.is_contiguous():
                check_has_memory(array)
                array = array.resolve_neg().contiguous()
            return array.data_ptr(), _DTYPE_NAMES.get(array.dtype) or str(array.dtype), array.shape, array
        except RuntimeError:  # torch's own for tensors without a storage or a shape
            check_has_memory(array)
            raise
