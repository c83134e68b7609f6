"""Output frameworks: how arrays of the device become a user's tensors without a copy, and how actions come back.

A framework imports memory once, as a slab, and hands out views of it: a DLPack import costs 2 to 6 us, a view nothing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.errors import MissingExtraError
from gpuvec.vector.host_copies import to_host

OUTPUTS = ("torch", "cupy", "jax", "numpy", "dlpack")


class Framework(Protocol):
    """What `output=` names."""

    @property
    def copies(self) -> bool:
        """Whether users get copies on the host, in place of the memory that `rows` gives."""

    @property
    def alignment(self) -> int:
        """Bytes to which an array must be aligned so that `rows` needs no copy."""

    def wrap(self, array: Any) -> Any:
        """The memory of a NumPy or CuPy array as this framework's array, zero-copy."""

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """The arrays of `shape` that lie in a flat NumPy or CuPy array one after the other, each padded to the alignment, as
        this framework's arrays, zero-copy.
        """

    def stream(self) -> int:
        """The handle of the CUDA stream on which this framework's user works now; 0 on a CPU."""

    def capturing(self) -> bool:
        """Whether that stream is being captured into a graph; CUDA's default stream, whose handle is 0, never is."""

    def pointer(self, array: Any) -> tuple[int, str, tuple[int, ...], Any] | None:
        """(address, dtype name, shape, owner) of a C-contiguous array of this framework on the device; None for any other."""


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """As text, which unlike its `name` tells a foreign byte order; it takes 2 us to make."""
    return str(dtype)


class NativeArrays:
    """NumPy arrays on a CPU, CuPy arrays on a GPU: what buffers are made of, as they are."""

    copies = False
    alignment = 1

    def __init__(self, device: Device) -> None:
        self.device = device

    def wrap(self, array: Any) -> Any:
        """As given."""
        return array

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """See `Framework.rows`."""
        return map(self.wrap, slab.reshape(steps, *shape))

    def stream(self) -> int:
        """CuPy's current stream."""
        return int(self.device.arrays.cuda.get_current_stream(self.device.ordinal).ptr) if self.device.kind == "cuda" else 0

    def capturing(self) -> bool:
        """Whether CuPy's current stream is being captured."""
        return self.device.kind == "cuda" and bool(self.device.arrays.cuda.get_current_stream().is_capturing())

    def pointer(self, array: Any) -> tuple[int, str, tuple[int, ...], Any] | None:
        """See `Framework.pointer`."""
        if type(array) is not self.device.arrays.ndarray:
            return None
        if self.device.kind == "cuda" and array.device.id != self.device.ordinal:
            return None
        array = self.device.arrays.asarray(array, order="C")
        return address_of(array), _name(array.dtype), array.shape, array


class HostArrays(NativeArrays):
    """NumPy arrays for an environment on a GPU: kernels write to the device, and users get copies, for which they wait."""

    copies = True

    def wrap(self, array: Any) -> Any:
        """A copy on the host."""
        return to_host(array)

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """See `Framework.rows`; these are on the device."""
        return iter(slab.reshape(steps, *shape))


class DLPackArray:
    """Memory of the device that offers only the DLPack protocol: `torch.from_dlpack(x)`, `jax.dlpack.from_dlpack(x)`, ..."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack__(self, **kwargs: Any) -> Any:
        """The capsule; the consumer's `stream` is made to wait for the device's."""
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(device type, index) of DLPack."""
        return self._array.__dlpack_device__()  # type: ignore[no-any-return]  # NumPy and CuPy agree on it

    def __repr__(self) -> str:
        return f"DLPackArray(shape={self.shape}, dtype={self.dtype}, device={self.__dlpack_device__()})"


class DLPack(NativeArrays):
    """Objects that offer `__dlpack__` and nothing else."""

    def wrap(self, array: Any) -> Any:
        """The array behind the protocol."""
        return DLPackArray(array)

    def pointer(self, array: Any) -> tuple[int, str, tuple[int, ...], Any] | None:
        """See `Framework.pointer`."""
        inner = array._array if isinstance(array, DLPackArray) else array
        found = super().pointer(inner)
        return (*found[:3], array) if found is not None and found[3] is inner else found


class Jax(NativeArrays):
    """JAX arrays; JAX has no views, so each row is an import of its own."""

    alignment = 64  # XLA copies what is less aligned, at the import and so before a kernel has written it

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._jax = importlib.import_module("jax")

    def wrap(self, array: Any) -> Any:
        """As a JAX array, which may be a copy: for memory that nothing will write any more."""
        return self._jax.dlpack.from_dlpack(array)

    def rows(self, slab: Any, steps: int, shape: tuple[int, ...]) -> Iterator[Any]:
        """See `Framework.rows`. No copies: whoever keeps the array of a reused buffer sees later steps."""
        padded = slab.reshape(steps, -1)[:, : math.prod(shape)].reshape(steps, *shape)
        return (self._jax.dlpack.from_dlpack(row, copy=False) for row in padded)

    def pointer(self, array: Any) -> tuple[int, str, tuple[int, ...], Any] | None:
        """See `Framework.pointer`."""
        if isinstance(array, self._jax.Array) and (array.__dlpack_device__()[0] == 2) == (self.device.kind == "cuda"):
            array = self.device.arrays.from_dlpack(array)
        return super().pointer(array)


def make_framework(output: str, device: Device) -> Framework:
    """The framework that `output` names, for arrays of `device`.

    Raises:
        ValueError: no such name, or one whose arrays cannot live on the device.
        MissingExtraError: it is not installed.
    """
    if output not in OUTPUTS:
        raise ValueError(f"output must be one of {', '.join(map(repr, OUTPUTS))}, got {output!r}.")
    on_gpu = device.kind == "cuda"
    if output == "cupy" and not on_gpu:
        raise ValueError(f"output={output!r} cannot hold memory of {device}; use 'torch', 'numpy', 'jax' or 'dlpack'.")
    if output in ("numpy", "cupy"):
        return HostArrays(device) if output == "numpy" and on_gpu else NativeArrays(device)
    if output == "dlpack":
        return DLPack(device)
    try:
        if output == "jax":
            return Jax(device)
        return importlib.import_module("gpuvec.vector.torch_").Torch(device)  # type: ignore[no-any-return]  # its only torch module
    except ImportError as error:
        extra = "install gpuvec[train]" if output == "torch" else "install jax"
        raise MissingExtraError(
            f"output={output!r} needs {output} ({error}): {extra}, or pass output={'cupy' if on_gpu else 'numpy'!r}."
        ) from error


class _Handle(NamedTuple):
    """A CUDA stream that someone else made, in the form of CUDA's stream protocol."""

    value: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.value  # version of the protocol


@contextmanager
def on_stream(device: Device, stream: int) -> Iterator[Any]:
    """A context in which array operations run on `device` and `stream`; with CUDA it gives CuPy's object for that."""
    with device.current():
        if device.kind != "cuda":
            yield None
        else:
            with device.arrays.cuda.Stream.from_external(_Handle(stream)) as entered:
                yield entered


def refuse_without_memory(tensor: Any) -> None:
    """Refuses a tensor of torch that has no memory with one number for each element.

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
    """Any array or list as an array of the device's module: for resets and states, where a copy costs nothing that matters.

    Raises:
        TypeError: a tensor of torch on the "meta" device, or a sparse one.
    """
    xp, on_gpu = device.arrays, device.kind == "cuda"
    if type(array).__module__.partition(".")[0] == "torch":
        if hasattr(array, "is_meta"):
            refuse_without_memory(array)
        array = array.detach() if on_gpu and array.is_cuda else array.detach().cpu().numpy()
    if on_gpu and hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] == 2:
        array = xp.from_dlpack(array)  # waits for what the producer still computes; the interface of raw pointers does not
    elif on_gpu and hasattr(array, "__cuda_array_interface__"):
        array = xp.asarray(array)
    elif hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):  # NumPy would wrap such an object, not read it
        array = np.from_dlpack(array)
    return xp.asarray(array, dtype, order="C")
