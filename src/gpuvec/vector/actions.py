"""The actions of a step: their address and dtype, checked on the host without synchronising with the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.vector.framework import ArrayPointer, Framework
from gpuvec.vector.host_copies import DLPACK_CPU, DLPACK_CUDA, is_on_gpu
from gpuvec.vector.native_arrays import as_native, check_has_memory, export_errors, on_stream

DISCRETE = {"int32": np.int32, "int64": np.int64, "uint8": np.uint8}
CONTINUOUS = {"float32": np.float32, "float64": np.float64}


class Actions:
    """Reads the actions of all environments.

    Args:
        shape: the shape of the actions: (E,), (E, K), (E, A) or (E, A, K).
        discrete: whether actions are integers.
        device: the device that kernels run on.
        framework: the framework of the environment's outputs, whose arrays are read fastest.
    """

    def __init__(self, shape: tuple[int, ...], discrete: bool, device: Device, framework: Framework) -> None:
        self._shape = shape
        self._dtypes: dict[str, Any] = DISCRETE if discrete else CONTINUOUS
        self._device, self._framework = device, framework

    def read(self, actions: Any, stream: int) -> tuple[int, Any, Any]:
        """Returns (address, dtype, owner) of actions; the owner keeps the memory alive until the kernel is launched.

        Args:
            actions: an array of the shape that this object was created for, of any framework.
            stream: the handle of the CUDA stream that will read them.

        Raises:
            TypeError: no array, or elements of a wrong dtype.
            ValueError: a wrong shape, or memory of another device.
        """
        address, dtype_name, shape, owner = self._framework.pointer(actions) or self._convert(actions, stream)
        return address, self._checked_dtype(dtype_name, shape), owner

    def _checked_dtype(self, dtype_name: str, shape: tuple[int, ...]) -> Any:
        """The NumPy dtype called `dtype_name`.

        Raises:
            TypeError: the environment takes no actions of this dtype.
            ValueError: the environment takes no actions of this shape.
        """
        dtype = self._dtypes.get(dtype_name)
        if dtype is None:
            raise TypeError(
                f"actions have dtype {dtype_name}; this environment takes {' or '.join(self._dtypes)}: convert them."
            )
        if shape != self._shape:
            raise ValueError(
                f"actions have shape {tuple(shape)}; this environment takes {self._shape}, one row per environment."
            )
        return dtype

    def _convert(self, actions: Any, stream: int) -> ArrayPointer:
        """Actions that are no array of the environment's framework on its device."""
        on_gpu = self._device.kind == "cuda"
        if on_gpu:  # `as_native` checks it on a CPU
            check_has_memory(actions)
        if on_gpu and (not self._framework.copies or is_on_gpu(actions)):
            return self._import_to_gpu(actions, stream)
        array = self._host_array(actions)
        if not on_gpu:
            return address_of(array), str(array.dtype), array.shape, array
        self._checked_dtype(str(array.dtype), array.shape)  # since CuPy refuses some dtypes with messages of its own
        with on_stream(self._device, stream):
            copy = self._device.arrays.array(array)  # through pinned memory, without synchronising
        return address_of(copy), str(array.dtype), array.shape, copy

    def _import_to_gpu(self, actions: Any, stream: int) -> ArrayPointer:
        """Actions of another framework on the environment's GPU, through DLPack.

        Raises:
            TypeError: no array with DLPack's protocol.
            ValueError: memory of another device.
        """
        if not hasattr(actions, "__dlpack_device__"):
            raise TypeError(f"actions are a {type(actions).__name__}; this environment takes DLPack arrays on {self._device}.")
        with export_errors(actions):
            device_type, ordinal = (int(number) for number in actions.__dlpack_device__())
        if (device_type, ordinal) != (DLPACK_CUDA, self._device.ordinal):
            place = "the CPU" if device_type == DLPACK_CPU else f"cuda:{ordinal}"
            raise ValueError(f"actions are on {place}; this environment runs on {self._device}: move them there.")
        xp = self._device.arrays
        with export_errors(actions):
            array = xp.asarray(xp.from_dlpack(actions), order="C")  # makes CuPy's current stream wait for the producer's
        current = xp.cuda.get_current_stream()
        if current.ptr != stream:
            with on_stream(self._device, stream) as step_stream:
                step_stream.wait_event(current.record())
        return address_of(array), array.dtype.name, array.shape, array

    def _host_array(self, actions: Any) -> Any:
        """Actions in the host's memory as a C-contiguous NumPy array.

        Raises:
            TypeError: a single number or None.
            ValueError: a tensor on a GPU.
        """
        if np.isscalar(actions) or actions is None:
            raise TypeError(f"actions are {actions!r}; this environment takes one row per environment, in shape {self._shape}.")
        if type(actions).__module__.partition(".")[0] == "torch" and actions.device.type != "cpu":
            raise ValueError(f"actions are on {actions.device}; this environment runs on the CPU: move them there.")
        return as_native(Device("cpu"), actions)
