"""Actions of a step: where they lie and of which type they are, checked without touching the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuvec.engine.backends.device import Device
from gpuvec.vector.framework import Framework, as_native, on_stream
from gpuvec.vector.host_copies import is_on_gpu

DISCRETE = {"int32": np.int32, "int64": np.int64, "uint8": np.uint8}
CONTINUOUS = {"float32": np.float32, "float64": np.float64}


class Actions:
    """Reads the actions of E envs, of `shape`."""

    def __init__(self, shape: tuple[int, ...], discrete: bool, device: Device, framework: Framework) -> None:
        self._shape = shape
        self._types: dict[str, Any] = DISCRETE if discrete else CONTINUOUS
        self._device, self._framework = device, framework

    def read(self, actions: Any, stream: int) -> tuple[int, Any, Any]:
        """(address, dtype, owner): the owner keeps the memory alive until the kernel is launched.

        Raises:
            TypeError: no array, or elements of a wrong type.
            ValueError: a wrong shape, or memory of another device.
        """
        found = self._framework.pointer(actions) or self._foreign(actions, stream)
        pointer, name, shape, owner = found
        return pointer, self._checked(name, shape), owner

    def _checked(self, name: str, shape: tuple[int, ...]) -> Any:
        """The dtype called `name`, if the environment takes actions of it and of `shape`."""
        dtype = self._types.get(name)
        if dtype is None:
            raise TypeError(f"actions have dtype {name}; this environment takes {' or '.join(self._types)}: convert them.")
        if shape != self._shape:
            raise ValueError(
                f"actions have shape {tuple(shape)}; this environment takes {self._shape}, one row per environment."
            )
        return dtype

    def _foreign(self, actions: Any, stream: int) -> tuple[int, str, tuple[int, ...], Any]:
        """Actions of another framework, through DLPack, or from the host of any kind that NumPy reads."""
        xp, on_gpu = self._device.arrays, self._device.kind == "cuda"
        if on_gpu and not (self._framework.copies and not is_on_gpu(actions)):
            if not hasattr(actions, "__dlpack_device__"):
                raise TypeError(
                    f"actions are a {type(actions).__name__}; this environment takes DLPack arrays on {self._device}."
                )
            where = actions.__dlpack_device__()
            if (int(where[0]), int(where[1])) != (2, self._device.ordinal):
                kind = "the CPU" if int(where[0]) == 1 else f"cuda:{int(where[1])}"
                raise ValueError(f"actions lie on {kind}; this environment runs on {self._device}: move them there.")
            array = xp.asarray(xp.from_dlpack(actions), order="C")  # CuPy's current stream waits for the producer's
            current = xp.cuda.get_current_stream()
            if current.ptr != stream:
                with on_stream(self._device, stream) as ours:
                    ours.wait_event(current.record())
            return int(array.data.ptr), array.dtype.name, array.shape, array
        if np.isscalar(actions) or actions is None:
            raise TypeError(f"actions are {actions!r}; this environment takes one row per environment, in shape {self._shape}.")
        if type(actions).__module__.partition(".")[0] == "torch" and actions.device.type != "cpu":
            raise ValueError(f"actions lie on {actions.device}; this environment runs on the CPU: move them there.")
        array = as_native(Device("cpu"), actions)
        if on_gpu:
            self._checked(str(array.dtype), array.shape)  # CuPy refuses some types in words of its own
            with on_stream(self._device, stream):
                copy = xp.array(array)  # through pinned memory, without waiting
            return int(copy.data.ptr), str(array.dtype), array.shape, copy
        return array.ctypes.data, str(array.dtype), array.shape, array
