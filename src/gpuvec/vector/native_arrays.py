"""Arrays of the device's module, NumPy or CuPy: conversions to them, and the stream on which their operations run."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import LOWEST_ADDRESS, address_of
from gpuvec.vector.host_copies import framework_of, is_on_gpu


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
    """Refuses a tensor of torch that does not store one number for each element, before anything reads its shape or memory.

    Args:
        tensor: any object, of which only a tensor (...) of torch is checked.

    Raises:
        TypeError: a tensor on torch's "meta" device, one of a sparse, nested or another layout, or one without memory: a fake
            or functional tensor, an efficient zero tensor, or one whose storage was freed.
    """
    if framework_of(tensor) != "torch":
        return
    layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if tensor.is_meta:
        raise TypeError(
            "a tensor on torch's \"meta\" device holds no numbers; give one on the environment's device or the CPU."
        )
    if layout != "strided":
        raise TypeError(f"a tensor of layout {layout} was given; give a dense one, as its to_dense() returns.")
    # Torch warns before it returns the address of a fake tensor, which is 0. For a plain tensor the filters, which all threads
    # share, are not touched.
    with nullcontext() if type(tensor) is sys.modules["torch"].Tensor else warnings.catch_warnings(action="ignore"):
        try:
            address, num_bytes = tensor.data_ptr(), tensor.untyped_storage().nbytes()
        except RuntimeError:  # a subclass without a storage
            address = num_bytes = 0
    last = tensor.storage_offset() + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() and (address < LOWEST_ADDRESS or num_bytes < (last + 1) * tensor.element_size()):
        raise TypeError(
            f"a {type(tensor).__name__} was given that has no memory for its {tensor.numel()} elements, as a fake or "
            "functional tensor, or one whose storage was freed; give a tensor that holds numbers."
        )


@contextmanager
def export_errors(array: Any) -> Iterator[None]:
    """A block that reads an array of any library, whose own errors become a TypeError that says what was given.

    Args:
        array: the array, or another object.
    """
    try:
        yield
    except Exception as error:  # each library has errors of its own, for deleted and traced arrays, other dtypes, ragged lists
        raise TypeError(
            f"a {type(array).__name__} was given that cannot be read as an array ({error}); give an array of numbers of NumPy, "
            "torch, CuPy or JAX, or one with DLPack's protocol."
        ) from error


def as_native(device: Device, array: Any) -> Any:
    """Returns any array or list as a C-contiguous array of the device's module.

    This function serves resets and states, where the time of a copy does not matter. CuPy refuses some dtypes with messages
    of its own, so callers check those of user arrays before, see `read_array`.

    Args:
        device: the device of the result.
        array: an array of any framework and shape (...), or a list.

    Raises:
        TypeError: an array without memory, as `check_has_memory` says, or an object that is no array.
    """
    return device.arrays.asarray(read_array(device, array), order="C")


def read_array(device: Device, array: Any) -> Any:
    """Returns any array or list as an array of NumPy, or of CuPy if it is on the device and that is a GPU.

    Args:
        device: the device.
        array: an array of any framework, shape (...) and dtype, or a list.

    Raises:
        TypeError: as `as_native`.
    """
    xp, on_gpu = device.arrays, device.kind == "cuda"
    check_has_memory(array)
    with export_errors(array):
        if framework_of(array) == "torch":
            array = array.detach().resolve_neg()
            array = array if on_gpu and array.is_cuda else array.cpu().numpy()
        if on_gpu and is_on_gpu(array):
            # DLPack waits for what the producer still computes, which `__cuda_array_interface__` does not.
            array = xp.from_dlpack(array)
        elif on_gpu and hasattr(array, "__cuda_array_interface__"):
            array = xp.asarray(array)
        elif hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
            array = np.from_dlpack(array)  # since `asarray` would create an array with this object as its element
            if array.flags.owndata and array.size:  # NumPy allocates memory where it is given none
                raise TypeError("it has no memory")
        else:
            array = np.asarray(array)
    address_of(array)  # refuses an array without memory before it is copied
    return array


def is_numeric(array: Any) -> bool:
    """Returns whether an array of NumPy or CuPy holds bool, integers or floats."""
    return array.dtype.kind in "biuf"
