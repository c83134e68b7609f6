"""Arrays of the device's module, NumPy or CuPy: conversions to them, and the stream on which their operations run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.vector.host_copies import is_on_gpu


class _StreamHandle(NamedTuple):
    """A CUDA stream of another library, in the form of CUDA's stream protocol."""

    value: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.value  # version of the protocol, and the handle


@contextmanager
def on_stream(device: Device, stream: int) -> Iterator[Any]:
    """A context in which array operations run on one device and one stream.

    Args:
        device: the device.
        stream: the handle of a CUDA stream; ignored on a CPU.

    Yields:
        CuPy's object for the stream; None on a CPU.
    """
    with device.current():
        if device.kind != "cuda":
            yield None
        else:
            with device.arrays.cuda.Stream.from_external(_StreamHandle(stream)) as cupy_stream:
                yield cupy_stream


def check_has_memory(tensor: Any) -> None:
    """Refuses a tensor of torch that does not store one number for each element.

    Args:
        tensor: a tensor (...) of torch.

    Raises:
        TypeError: a tensor on torch's "meta" device, or one of a sparse or another layout.
    """
    layout = str(tensor.layout).removeprefix("torch.")
    if tensor.is_meta:
        raise TypeError(
            "a tensor on torch's \"meta\" device holds no numbers; give one on the environment's device or the CPU."
        )
    if layout != "strided":
        raise TypeError(f"a tensor of layout {layout} was given; give a dense one, as its to_dense() returns.")


def as_native(device: Device, array: Any, dtype: Any = None) -> Any:
    """Returns any array or list as a C-contiguous array of the device's module.

    This function serves resets and states, where the time of a copy does not matter.

    Args:
        device: the device of the result.
        array: an array of any framework and shape (...), or a list.
        dtype: the dtype of the result; None for the dtype of `array`.

    Raises:
        TypeError: a tensor of torch on the "meta" device, or a sparse one.
    """
    xp, on_gpu = device.arrays, device.kind == "cuda"
    if type(array).__module__.partition(".")[0] == "torch":
        if hasattr(array, "is_meta"):
            check_has_memory(array)
        array = array.detach() if on_gpu and array.is_cuda else array.detach().cpu().numpy()
    if on_gpu and is_on_gpu(array):
        # DLPack waits for what the producer still computes, which `__cuda_array_interface__` does not.
        array = xp.from_dlpack(array)
    elif on_gpu and hasattr(array, "__cuda_array_interface__"):
        array = xp.asarray(array)
    elif hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
        array = np.from_dlpack(array)  # since `asarray` would create an array with this object as its element
    return xp.asarray(array, dtype, order="C")
