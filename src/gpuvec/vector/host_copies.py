"""Arrays of any library as NumPy arrays: views of the host's memory, and copies of a GPU's."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MODULES = {"torch": "torch", "numpy": "numpy", "cupy": "cupy", "jax": "jax.numpy", "jaxlib": "jax.numpy"}
ALIGNMENT = 64  # bytes; of each array within the block


def framework_of(value: Any) -> str | None:
    """The name of the framework whose array `value` is, a key of `MODULES`; None if it is something else."""
    for cls in type(value).__mro__:
        name = cls.__module__.partition(".")[0]
        if name in MODULES and hasattr(value, "dtype"):
            return "jax" if name == "jaxlib" else name
    return None


def is_on_gpu(value: Any) -> bool:
    """Whether `value` is an array in the memory of a CUDA device."""
    return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) == 2  # of DLPack: kDLCUDA


def to_host(value: Any) -> NDArray[Any]:
    """Any array or list as a NumPy array: a view where its memory is the host's. From a GPU this waits for the device."""
    return copies_on_host([value])[0]


def copies_on_host(values: Sequence[Any]) -> list[NDArray[Any]]:
    """Arrays or lists as NumPy arrays, as `to_host` makes them; those of one GPU with a single wait.

    The GPU writes into one block of pinned memory, which is its fastest way to the host, and what is returned are views of
    one copy of that block: pinned memory is scarce, and a caller may hold the arrays for long. The copies wait for what was
    launched on the current stream of CuPy and, of arrays of another library, on that library's.

    Raises:
        RuntimeError: the stream is being captured into a graph, which cannot wait.
    """
    found: dict[int, NDArray[Any]] = {}
    on_gpu = {id(value): value for value in values if is_on_gpu(value)}
    if on_gpu:
        cupy: Any = importlib.import_module("cupy")
        arrays = [v if isinstance(v, cupy.ndarray) else cupy.from_dlpack(_detached(v)) for v in on_gpu.values()]
        found = dict(zip(on_gpu, _through_pinned_memory(cupy, arrays), strict=True))
    return [found[id(value)] if id(value) in found else np.asarray(_detached(value)) for value in values]


def _detached(value: Any) -> Any:
    """A tensor without its gradient; anything else as it is."""
    return value.detach() if framework_of(value) == "torch" else value


def _through_pinned_memory(cupy: Any, arrays: list[Any]) -> list[NDArray[Any]]:
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
        block[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)  # `contiguous` has no arrays of no dimension
        for begin, array in zip(begins, arrays, strict=False)
    ]
