"""Output frameworks: how arrays of the device become a user's tensors without a copy, and how actions are read.

A framework imports memory once, as a slab, and returns views of it: a DLPack import takes 2 to 6 us, a view almost nothing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.engine.compiler.types import DType
from gpuvec.errors import MissingExtraError, install_command
from gpuvec.vector.host_copies import is_on_gpu, to_host
from gpuvec.vector.native_arrays import export_errors

OUTPUTS = ("torch", "cupy", "jax", "numpy", "dlpack")

# The address, the name of the dtype, the shape, and the object that keeps the memory alive. A plain tuple, because `step`
# creates one in every call.
ArrayPointer: TypeAlias = tuple[int, str, tuple[int, ...], Any]


@cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    """The dtype as text, which unlike `dtype.name` includes another byte order; NumPy takes 2 us to format it."""
    return str(dtype)


class Framework:
    """The library whose arrays an environment returns, as the argument `output` names it.

    This class itself is that of the arrays that buffers consist of: NumPy's on a CPU, CuPy's on a GPU.

    Args:
        device: the device of the arrays.

    Attributes:
        copies: whether users get copies on the host, in place of the memory that `rows` returns.
        integer_dtype: the dtype of integers that the framework makes by default, such as sampled actions.
        alignment: bytes to which an array must be aligned so that `rows` needs no copy.
    """

    copies = False
    integer_dtype: DType = np.int64
    alignment = 1

    def __init__(self, device: Device) -> None:
        self.device = device

    def wrap(self, array: Any) -> Any:
        """Returns an array of this framework over the same memory.

        Args:
            array: a NumPy or CuPy array (...).
        """
        return array

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """Yields arrays of this framework over the consecutive arrays in a slab, without copies.

        Args:
            slab: a flat NumPy or CuPy array, in which each array is padded to the alignment.
            steps: the number of arrays.
            shape: the shape of each array.
        """
        return map(self.wrap, slab.reshape(steps, *shape))

    def stream(self) -> int:
        """Returns the handle of the framework's current CUDA stream; 0 on a CPU."""
        return int(self.device.arrays.cuda.get_current_stream(self.device.ordinal).ptr) if self.device.kind == "cuda" else 0

    def capturing(self) -> bool:
        """Returns whether that stream is being captured into a graph; CUDA's default stream, with handle 0, never is."""
        return self.device.kind == "cuda" and bool(self.device.arrays.cuda.get_current_stream().is_capturing())

    def pointer(self, array: Any) -> ArrayPointer | None:
        """Returns the pointer to a C-contiguous array of this framework on the device; None for any other object.

        Args:
            array: any object; an array of this framework that is not C-contiguous is copied.
        """
        if type(array) is not self.device.arrays.ndarray:
            return None
        if self.device.kind == "cuda" and array.device.id != self.device.ordinal:
            return None
        array = self.device.arrays.asarray(array, order="C")
        return address_of(array), _dtype_name(array.dtype), array.shape, array


class HostArrays(Framework):
    """NumPy arrays for an environment on a GPU: kernels write to the device, and users get copies, for which the host waits."""

    copies = True

    def wrap(self, array: Any) -> Any:
        """Returns a copy of `array` on the host."""
        return to_host(array)

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """Yields the `steps` arrays of `shape` in `slab`; they are on the device."""
        return iter(slab.reshape(steps, *shape))


class DLPackArray:
    """Memory of the device that offers only the DLPack protocol: `torch.from_dlpack(x)`, `jax.dlpack.from_dlpack(x)`, ...

    Args:
        array: a NumPy or CuPy array over that memory.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    @property
    def native(self) -> Any:
        """The NumPy or CuPy array over that memory."""
        return self._array

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Returns the capsule; the consumer's `stream` waits for the device's stream."""
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns DLPack's device type and the index of the device."""
        return self._array.__dlpack_device__()  # type: ignore[no-any-return]  # NumPy and CuPy agree on it

    def __repr__(self) -> str:
        return f"DLPackArray(shape={self.shape}, dtype={self.dtype}, device={self.__dlpack_device__()})"


class DLPackObjects(Framework):
    """Objects that offer `__dlpack__` and nothing else."""

    def wrap(self, array: Any) -> Any:
        """Returns an object with DLPack's protocol over the memory of `array`."""
        return DLPackArray(array)

    def pointer(self, array: Any) -> ArrayPointer | None:
        """Returns the pointer to `array`, or None, as `Framework.pointer` describes."""
        native = array.native if isinstance(array, DLPackArray) else array
        pointer = super().pointer(native)
        return (*pointer[:3], array) if pointer is not None and pointer[3] is native else pointer


class JaxArrays(Framework):
    """JAX arrays; JAX has no views, so each array is imported separately.

    Args:
        device: the device of the arrays.
    """

    integer_dtype: DType = np.int32
    alignment = 64  # XLA copies an array with less when it is imported, which is before a kernel has written it.

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._jax = importlib.import_module("jax")

    def wrap(self, array: Any) -> Any:
        """Returns `array` as a JAX array, which may be a copy: only for memory that nothing writes any more."""
        return self._jax.dlpack.from_dlpack(array)

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """Yields the `steps` arrays of `shape` in `slab`; an array over a buffer that is reused shows later steps."""
        padded = slab.reshape(steps, -1)[:, : math.prod(shape)].reshape(steps, *shape)
        return (self._jax.dlpack.from_dlpack(row, copy=False) for row in padded)

    def pointer(self, array: Any) -> ArrayPointer | None:
        """Returns the pointer to `array`, or None, as `Framework.pointer` describes."""
        # `_convert` of `Actions` says what is wrong with a deleted or a traced array.
        if isinstance(array, self._jax.Array) and hasattr(array, "is_deleted") and not array.is_deleted():
            with export_errors(array):
                if is_on_gpu(array) == (self.device.kind == "cuda"):
                    array = self.device.arrays.from_dlpack(array)
        return super().pointer(array)


def make_framework(output: str, device: Device) -> Framework:
    """Creates the framework that an environment's argument `output` names.

    Args:
        output: one of `OUTPUTS`.
        device: the device of the arrays.

    Raises:
        ValueError: another name, or a framework whose arrays cannot be on this device.
        MissingExtraError: the framework is not installed.
    """
    if not isinstance(output, str) or output not in OUTPUTS:
        raise ValueError(f"output must be one of {', '.join(map(repr, OUTPUTS))}, got {output!r}.")
    on_gpu = device.kind == "cuda"
    if output == "cupy" and not on_gpu:
        raise ValueError(f"output={output!r} cannot hold memory of {device}; use 'torch', 'numpy', 'jax' or 'dlpack'.")
    if output in ("numpy", "cupy"):
        return HostArrays(device) if output == "numpy" and on_gpu else Framework(device)
    if output == "dlpack":
        return DLPackObjects(device)
    try:
        if output == "jax":
            return JaxArrays(device)
        # This module is the only one of the package that imports torch.
        return importlib.import_module("gpuvec.vector.torch_").TorchTensors(device)  # type: ignore[no-any-return]
    except ImportError as error:
        extra = install_command("train") if output == "torch" else "pip install jax"
        raise MissingExtraError(
            f"output={output!r} needs {output} ({error}): {extra}, or pass output={'cupy' if on_gpu else 'numpy'!r}."
        ) from error
