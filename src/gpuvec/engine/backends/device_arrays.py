"""Names for arrays whose library is known only at run time, for annotations, and what such arrays have in common."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# An array of `Device.arrays`: `numpy.ndarray`, or on a GPU `cupy.ndarray`. CuPy is not installed everywhere, and has no types.
DeviceArray: TypeAlias = Any
# An array of NumPy, CuPy, PyTorch or JAX, or an object with DLPack's protocol: what users pass and get.
AnyArray: TypeAlias = Any


def to_numpy(array: DeviceArray) -> NDArray[Any]:
    """A NumPy or CuPy `array` (...) as a NumPy array: itself, or a copy for which the host waits."""
    return np.asarray(array if isinstance(array, np.ndarray | np.generic) else array.get())


def address_of(array: DeviceArray) -> int:
    """The address of the first element of a NumPy or CuPy `array` (...)."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
