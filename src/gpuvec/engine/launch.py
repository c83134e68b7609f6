"""Launches compiled kernels on a GPU, at the price of a driver call.

A Numba launch costs 50 to 170 us of Python, one by cuda.core with plain addresses 4.3 us. The driver's own call costs 3.2 us;
it takes the arguments from a block of memory that stays where it is, in which a step changes only what is new.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gpuvec.engine.agents.mapping import Mapping
from gpuvec.engine.batch import Variant, members
from gpuvec.engine.device import Device
from gpuvec.engine.parameters import request_dtypes
from gpuvec.engine.signature import layout
from gpuvec.errors import DeviceError
from gpuvec.spec import Environment


@lru_cache(maxsize=64)  # kernels serve any number of envs of a mapping, so those of the same environment are compiled once
def _binaries(env: Environment, variant: Variant, given: Mapping | None, played: bool, cc: tuple[int, int]) -> Any:
    """[(kernel, machine code)] of a step or a reset."""
    from gpuvec.engine import kernels

    return [(kernel, kernel.binary(cc)) for kernel in kernels.kernels(env, variant, given, played)]


def function_on(device: Device, binary: Any) -> tuple[Any, Any]:
    """(function, what keeps it alive): a kernel on one GPU, which is 0.5 us faster to launch than the kernel for all of them.

    Raises:
        DeviceError: the driver refuses it.
    """
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    with device.current():
        loaded = ObjectCode.from_cubin(binary.cubin).get_kernel(binary.name)
        status, function = driver.cuKernelGetFunction(loaded.handle)
    checked((status,), "loaded")
    return function, loaded


def checked(result: tuple[Any, ...], done: str) -> None:
    """Raises DeviceError if the driver's result says that a kernel could not be `done`."""
    if result[0]:
        raise DeviceError(f"a kernel could not be {done}: {result[0]!r}.")


class CudaKernels:
    """The kernels of an env on one GPU, each compiled when first used."""

    def __init__(self, env: Environment, num_envs: int, device: Device) -> None:
        from cuda import core

        from gpuvec.engine import kernels

        self._env, self._num_envs, self._device = env, num_envs, device
        self._cc = tuple(core.Device(device.ordinal).compute_capability)
        self._mapping = kernels.shape(env, num_envs)
        self.split = self._mapping is not None and self._mapping.split
        self.blocks = -(-num_envs // (self._mapping.envs if self._mapping else kernels.THREADS))

    def reset(self, variant: Variant) -> Callable[..., None]:
        """`launch(stream, *members of the batch, *members of the request)`."""
        kinds = [np.dtype(dtype).char for dtype in request_dtypes(self._env)]
        pack = struct.Struct("".join(f"{kind}{8 - struct.calcsize(kind)}x" for kind in kinds)).pack_into
        block, launch = self._loaded(variant, False, len(kinds))
        count = len(block) - len(kinds)

        def call(stream: int, *arguments: Any) -> None:
            block[:count] = arguments[:count]
            pack(block, 8 * count, *arguments[count:])
            launch(stream)

        return call

    def step(self, variant: Variant, kept: tuple[int, ...]) -> Callable[[int, int, bytes], None]:
        """`launch(stream, action, outputs)`, over what lies at the addresses in `kept`."""
        block, launch = self._loaded(variant, True)
        returned = len(block) - len(members(kept, b"", 0))
        block[:] = members(kept, bytes(8 * returned), self._num_envs)
        words, octets = memoryview(block), memoryview(block).cast("B")
        at, places = len(kept), slice(-8 * (returned + 1), -8)

        def call(stream: int, action: int, outputs: bytes) -> None:
            words[at] = action
            octets[places] = outputs
            launch(stream)

        return call

    def _loaded(self, variant: Variant, played: bool, asked: int = 0) -> tuple[Any, Callable[[int], None]]:
        """(block, launch): `launch(stream)` takes the arguments from the block, 8 bytes each, the last `asked` a request's."""
        from cuda.bindings import driver

        block = np.zeros(len(layout(self._env, variant, self.split).batch._fields) + asked, np.uint64)
        pointers = block.ctypes.data + 8 * np.arange(len(block), dtype=np.uint64)
        launches, kept = [], [block, pointers]  # the driver knows but addresses
        with self._device.current():  # of which the compiler asks the compute capability
            for kernel, binary in _binaries(self._env, variant, self._mapping, played, self._cc):
                function, loaded = function_on(self._device, binary)
                kept.append(loaded)
                grid = (kernel.blocks(self._num_envs), 1, 1, kernel.threads, 1, 1, 0)
                launches.append(partial(driver.cuLaunchKernel, function, *grid))
        parameters: int = pointers.ctypes.data

        def launch(stream: int, keep: Any = kept) -> None:
            for one in launches:
                result = one(stream, parameters, 0)
                if result[0]:  # asked here: a call costs
                    checked(result, "launched")

        return block, launch

    def close(self) -> None:
        """Nothing to end: kernels live as long as something launches them."""
