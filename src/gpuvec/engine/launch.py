"""Launches compiled kernels on a GPU, at the price of a driver call.

A Numba launch costs 50 to 170 us of Python, one by cuda.core with plain addresses 4.3 us. The driver's own call, with the
arguments packed into a block of memory that stays where it is, costs 3.2 us and the packing 0.4.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gpuvec.engine.batch import Variant, layout
from gpuvec.engine.single import request_dtypes
from gpuvec.errors import DeviceError
from gpuvec.spec import Single


@lru_cache(maxsize=64)  # a kernel serves any number of envs, so one of the same environment is compiled once in a process
def _binary(env: Single, variant: Variant, which: int, cc: tuple[int, int]) -> Any:
    """The kernel "reset" (0) or "step" (1) as machine code."""
    from gpuvec.engine import cuda

    body, signature = cuda.kernels(env, variant)[which], cuda.signatures(env, layout(env, variant))[which]
    return cuda.link(cuda.intermediate(body, signature, cc, "ltoir"), cc)


class CudaKernels:
    """The kernels of an env on one GPU, each compiled when first used."""

    def __init__(self, env: Single, num_envs: int, index: int) -> None:
        from cuda.core import Device

        from gpuvec.engine import cuda

        self._env, self._cuda = env, cuda
        self._device = Device(index)
        self._device.set_current()
        self._cc = tuple(self._device.compute_capability)
        self.blocks = -(-num_envs // cuda.THREADS)

    def reset(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        return self._launcher(variant, 0, request_dtypes(self._env))

    def step(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch)`."""
        return self._launcher(variant, 1, ())

    def _launcher(self, variant: Variant, which: int, request: tuple[Any, ...]) -> Callable[..., None]:
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        binary = _binary(self._env, variant, which, self._cc)
        kernel = ObjectCode.from_cubin(binary.cubin).get_kernel(binary.name)
        addresses = len(layout(self._env, variant).batch._fields) - 1
        kinds = ["Q"] * addresses + ["q"] + [np.dtype(dtype).char for dtype in request]
        pack = struct.Struct("".join(f"{kind}{8 - struct.calcsize(kind)}x" for kind in kinds)).pack_into
        slots = ctypes.create_string_buffer(8 * len(kinds))
        pointers = (ctypes.c_void_p * len(kinds))(*(ctypes.addressof(slots) + 8 * k for k in range(len(kinds))))
        launch, function, parameters = driver.cuLaunchKernel, driver.CUfunction(int(kernel.handle)), ctypes.addressof(pointers)
        blocks, threads = self.blocks, self._cuda.THREADS

        # `kernel` and `pointers` are named to be kept: the driver knows but their addresses.
        def call(stream: int, *arguments: Any, keep: Any = (kernel, pointers)) -> None:
            pack(slots, 0, *arguments)
            (status,) = launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0)
            if status:
                raise DeviceError(f"a kernel could not be launched: {status!r}.")

        return call

    def close(self) -> None:
        """Nothing to end: kernels live as long as something launches them."""
