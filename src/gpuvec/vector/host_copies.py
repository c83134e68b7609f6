"""Arrays of any library as NumPy arrays: views of memory on the host, and copies of memory on a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODULES = {"torch": "torch", "numpy": "numpy", "cupy": "cupy", "jax": "jax.numpy", "jaxlib": "jax.numpy"}
ALIGNMENT = 64  # bytes, of each array within the block of pinned memory
DLPACK_CPU, DLPACK_CUDA = 1, 2  # DLPack's device types kDLCPU and kDLCUDA


def framework_of(value: Any) -> str | None:
    """Returns the name of the framework that an array belongs to.

    Args:
        value: any object.

    Returns:
        A key of `MODULES`; None if `value` is no array of these frameworks.
    """
    for cls in type(value).__mro__:
        name = cls.__module__.partition(".")[0]
        if name in MODULES and hasattr(value, "dtype"):
            return "jax" if name == "jaxlib" else name
    return None


def is_on_gpu(value: Any) -> bool:
    """Returns whether `value` is an array in the memory of a CUDA device."""
    return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) == DLPACK_CUDA


def to_host(value: Any) -> NDArray[Any]:
    """Returns an array or a list as a NumPy array: a view of memory on the host, or a copy that waits for the GPU.

    Args:
        value: an array of any framework and shape (...), or a list.
    """
    return copies_on_host([value])[0]


def copies_on_host(values: Sequence[Any]) -> list[NDArray[Any]]:
    """Returns arrays or lists as NumPy arrays, as `to_host` does, but waits only once for all arrays of a GPU.

    The GPU writes into one block of pinned memory, which is the fastest way to the host. The results are views of one
    pageable copy of that block, because pinned memory is scarce and a caller may hold the arrays for long. The copies wait
    for the kernels launched on CuPy's current stream and, for arrays of another library, on the stream of that library.

    Args:
        values: arrays of any framework and shape (...), or lists; those on a GPU all on the same one.

    Raises:
        RuntimeError: the stream is being captured into a graph, which cannot wait.
    """
    copies: dict[int, NDArray[Any]] = {}
    on_gpu = {id(value): value for value in values if is_on_gpu(value)}
    if on_gpu:
        cupy: Any = importlib.import_module("cupy")
        arrays = [v if isinstance(v, cupy.ndarray) else cupy.from_dlpack(_detached(v)) for v in on_gpu.values()]
        copies = dict(zip(on_gpu, _copy_through_pinned_memory(cupy, arrays), strict=True))
    host_arrays = []
    for value in values:
        has_only_dlpack = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        read = np.from_dlpack if has_only_dlpack else np.asarray
        host_arrays.append(copies[id(value)] if id(value) in copies else read(_detached(value)))
    return host_arrays


def _detached(value: Any) -> Any:
    """A tensor without its gradient; anything else unchanged."""
    return value.detach() if framework_of(value) == "torch" else value


def _copy_through_pinned_memory(cupy: Any, arrays: list[Any]) -> list[NDArray[Any]]:
    """Copies of CuPy arrays of one device."""
    runtime = cupy.cuda.runtime
    with arrays[0].device:
        stream = cupy.cuda.get_current_stream()
        if stream.is_capturing():
            raise RuntimeError(
                "NumPy arrays are copies that wait for the device, and a graph that is being captured cannot wait: make the "
                "environment with output='torch' or 'cupy'."
            )
        contiguous = [cupy.ascontiguousarray(array) for array in arrays]
        begins = np.cumsum([0, *(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in contiguous)]).tolist()
        pinned = cupy.cuda.alloc_pinned_memory(max(begins[-1], 1))
        for begin, array in zip(begins, contiguous, strict=False):
            if array.nbytes:
                runtime.memcpyAsync(pinned.ptr + begin, array.data.ptr, array.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        stream.synchronize()
    block = np.frombuffer(pinned, np.uint8, begins[-1]).copy()
    return [
        # The shape is that of `arrays`, since `ascontiguousarray` makes an array of no dimensions one of (1,).
        block[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        for begin, array in zip(begins, arrays, strict=False)
    ]
