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

from gpuvec.engine.agents.mapping import Mapping
from gpuvec.engine.batch import Variant
from gpuvec.engine.parameters import request_dtypes
from gpuvec.engine.signature import layout
from gpuvec.errors import DeviceError
from gpuvec.spec import Environment


@lru_cache(maxsize=64)  # kernels serve any number of envs of a mapping, so those of the same environment are compiled once
def _binaries(env: Environment, variant: Variant, given: Mapping | None, played: bool, cc: tuple[int, int]) -> Any:
    """[(kernel, machine code)] of a step or a reset."""
    from gpuvec.engine import cuda, kernels

    found = kernels.kernels(env, variant, given, played)
    return [(k, cuda.link(cuda.intermediate(k.body, k.signature, cc, "ltoir", k.threads, k.resident), cc)) for k in found]


class CudaKernels:
    """The kernels of an env on one GPU, each compiled when first used."""

    def __init__(self, env: Environment, num_envs: int, index: int) -> None:
        from cuda.core import Device

        from gpuvec.engine import kernels

        self._env, self._num_envs = env, num_envs
        self._device = Device(index)
        self._device.set_current()
        self._cc = tuple(self._device.compute_capability)
        self._mapping = kernels.shape(env, num_envs)
        self.split = self._mapping is not None and self._mapping.split
        self.blocks = -(-num_envs // (self._mapping.envs if self._mapping else kernels.THREADS))

    def reset(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        return self._launcher(variant, False, request_dtypes(self._env))

    def step(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch)`."""
        return self._launcher(variant, True, ())

    def _launcher(self, variant: Variant, played: bool, request: tuple[Any, ...]) -> Callable[..., None]:
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        addresses = len(layout(self._env, variant, self.split).batch._fields) - 1
        kinds = ["Q"] * addresses + ["q"] + [np.dtype(dtype).char for dtype in request]
        pack = struct.Struct("".join(f"{kind}{8 - struct.calcsize(kind)}x" for kind in kinds)).pack_into
        slots = ctypes.create_string_buffer(8 * len(kinds))
        pointers = (ctypes.c_void_p * len(kinds))(*(ctypes.addressof(slots) + 8 * k for k in range(len(kinds))))
        kept: list[Any] = [pointers]  # the driver knows but addresses
        launches = []
        for kernel, binary in _binaries(self._env, variant, self._mapping, played, self._cc):
            loaded = ObjectCode.from_cubin(binary.cubin).get_kernel(binary.name)
            kept.append(loaded)
            grid = (kernel.blocks(self._num_envs), 1, 1, kernel.threads, 1, 1, 0)
            launches.append((driver.CUfunction(int(loaded.handle)), *grid))
        launch, parameters = driver.cuLaunchKernel, ctypes.addressof(pointers)

        def call(stream: int, *arguments: Any, keep: Any = kept) -> None:
            pack(slots, 0, *arguments)
            for one in launches:
                (status,) = launch(*one, stream, parameters, 0)
                if status:
                    raise DeviceError(f"a kernel could not be launched: {status!r}.")

        return call

    def close(self) -> None:
        """Nothing to end: kernels live as long as something launches them."""
