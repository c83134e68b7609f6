"""Annotations for arrays whose library is known only at run time, and functions that take any of them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# An array of `Device.arrays`: `numpy.ndarray`, or on a GPU `cupy.ndarray`. CuPy is not installed everywhere, and has no types.
DeviceArray: TypeAlias = Any
# An array of NumPy, CuPy, PyTorch or JAX, or an object with DLPack's protocol, which users pass and receive.
AnyArray: TypeAlias = Any
LOWEST_ADDRESS = 4096  # of memory that a process can have, since the first page is never mapped


def to_numpy(array: DeviceArray) -> NDArray[Any]:
    """Converts an array to NumPy. The copy of a CuPy array synchronizes the host with the GPU.

    Args:
        array: (...) NumPy or CuPy array.

    Returns:
        (...) the array itself if it is NumPy's, else a copy.
    """
    return np.asarray(array if isinstance(array, np.ndarray | np.generic) else array.get())


def address_of(array: DeviceArray) -> int:
    """The address of the first element of a NumPy or CuPy array.

    Args:
        array: (...) the array.

    Raises:
        TypeError: the array has elements and no memory, as one that was imported from freed memory.
    """
    address = int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
    if address < LOWEST_ADDRESS and array.size:
        raise TypeError(f"an array of shape {array.shape} was given that has no memory; give one that holds numbers.")
    return address
