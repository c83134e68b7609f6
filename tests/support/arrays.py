"""Conversions between NumPy arrays on the host and the arrays that an environment returns and takes."""

from __future__ import annotations

from typing import Any

import numpy as np


def host(value: Any) -> Any:
    """Returns a NumPy copy of an array of any library and device, or of each array in a dict or tuple."""
    if isinstance(value, dict):
        return {name: host(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map(host, value))
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy().copy()
    if hasattr(value, "get"):
        return value.get()
    if hasattr(value, "__dlpack_device__") and not hasattr(value, "__array__"):
        if value.__dlpack_device__()[0] == 1:
            return np.from_dlpack(value).copy()
        import cupy

        return cupy.from_dlpack(value).get()
    return np.array(value)


def on_device(env: Any, value: Any) -> Any:
    """Returns `value` as an array of the library of `env`, on its device; a dict by role as one of such arrays."""
    if isinstance(value, dict):
        return {name: on_device(env, item) for name, item in value.items()}
    value = np.asarray(value)
    if env.output == "torch":
        import torch

        return torch.tensor(value, device=env.device)
    if env.device.startswith("cuda"):
        import cupy

        with cupy.cuda.Device(int(env.device.partition(":")[2])):
            return cupy.asarray(value)
    return value


def step(env: Any, actions: Any) -> Any:
    """Takes one step of `env` with actions from the host; returns the results as NumPy arrays."""
    return host(env.step(on_device(env, actions)))


def reset(env: Any, **kwargs: Any) -> Any:
    """Resets `env`; returns the observations as a NumPy array."""
    return host(env.reset(**kwargs)[0])


def address(value: Any) -> int:
    """Returns the address of the first element of an array of any library and device."""
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr())
    if hasattr(value, "unsafe_buffer_pointer"):
        return int(value.unsafe_buffer_pointer())
    if hasattr(value, "__cuda_array_interface__"):
        return int(value.__cuda_array_interface__["data"][0])
    if value.__dlpack_device__()[0] != 1:
        import cupy

        return int(cupy.from_dlpack(value).data.ptr)
    return int(np.from_dlpack(value).ctypes.data)
