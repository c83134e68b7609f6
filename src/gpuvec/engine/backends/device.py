"""Devices: the CPU, GPUs and the CUDA simulator, their free memory, and the modules whose arrays are allocated on them."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.host_memory import available_bytes
from gpuvec.errors import DeviceError, ForkError, MissingExtraError, OutOfMemoryError, install_command

# A driver that is initialized already, or missing, answers within a fraction of this time. Initialization takes 0.2 s.
DRIVER_ANSWER_SECONDS = 0.01


class Device(NamedTuple):
    """A device on which kernels run.

    Attributes:
        kind: "cpu", "cuda", or "simulator", where Python threads run CUDA kernels on the CPU's memory.
        ordinal: the index of a GPU.
    """

    kind: str
    ordinal: int = 0

    def __str__(self) -> str:
        return f"cuda:{self.ordinal}" if self.kind == "cuda" else self.kind

    @property
    def arrays(self) -> Any:
        """The module whose arrays are in the memory of this device: NumPy or CuPy."""
        return _cupy() if self.kind == "cuda" else np

    def current(self) -> AbstractContextManager[Any]:
        """A context in which this is CUDA's current device, where kernels are launched and memory is allocated."""
        return _current_gpu(self.ordinal) if self.kind == "cuda" else nullcontext()

    def is_not_current(self) -> bool:
        """Whether this is a GPU and another one is CUDA's current device."""
        return self.kind == "cuda" and bool(_cupy().cuda.runtime.getDevice() != self.ordinal)

    def pooled_bytes(self) -> int:
        """Bytes of this GPU that CuPy's memory pool has allocated."""
        with self.current():
            return int(_cupy().get_default_memory_pool().total_bytes())

    def free_bytes(self) -> int | None:
        """Bytes that can still be allocated; None on a system that does not report them."""
        if self.kind == "cuda":
            cupy = _cupy()
            with self.current():
                return int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())
        return available_bytes()

    def require_bytes(self, num_bytes: int, purpose: str) -> None:
        """Checks before an allocation that enough memory is free, so that the process stays usable.

        Args:
            num_bytes: the size of the allocation.
            purpose: what is allocated, for the message.

        Raises:
            OutOfMemoryError: fewer bytes are free.
        """
        free = self.free_bytes()
        if free is not None and num_bytes > free:
            raise OutOfMemoryError(
                f"{purpose} needs {num_bytes:,} bytes on {self}, where {free:,} are free; use fewer environments, or free some."
            )


class _CurrentGPU(AbstractContextManager[None]):
    """A block in which a GPU's primary context is current. Afterwards the previous one is current again, or none.

    CuPy's own block has neither property. It sets a device only if another one is current, and the first one is current in a
    process without any context, which the driver's calls need. To set the previous device again creates a context there, which
    takes about 500 MiB.

    Args:
        ordinal: the index of the GPU.

    Raises:
        DeviceError: the driver cannot create a context there.
    """

    def __init__(self, ordinal: int) -> None:
        from cuda.bindings import driver

        status, device = driver.cuDeviceGet(ordinal)
        if not status:
            status, self._context = driver.cuDevicePrimaryCtxRetain(device)
        if status:
            raise DeviceError(f"device cuda:{ordinal} cannot be used: {status!r}.")
        self._push, self._pop = driver.cuCtxPushCurrent, driver.cuCtxPopCurrent

    def __enter__(self) -> None:
        self._push(self._context)

    def __exit__(self, *error: object) -> None:
        self._pop()


_current_gpu = cache(_CurrentGPU)
"""The block of each GPU. It has no state, so that threads share it and it can be nested."""


def parse_device(name: str, meanwhile: Callable[[], None] | None = None) -> Device:
    """The device with a name.

    Args:
        name: "cpu", "cuda" for CUDA's current device, "cuda:1" for one by its index, "simulator", or "auto" for a GPU if this
            machine has one, else the CPU.
        meanwhile: is called while the driver is initialized, if that takes time.

    Raises:
        ValueError: there is no such name.
        DeviceError: the name is that of a GPU, and there is no driver or no such index.
        MissingExtraError: the name is that of a GPU, and CuPy is missing.
        ForkError: the name is that of a GPU, and this process was forked after CUDA was initialized.
    """
    match = re.fullmatch(r"(auto|cpu|simulator|cuda)(?::(\d+))?", name) if isinstance(name, str) else None
    if match is None or (match[2] and match[1] != "cuda"):
        raise ValueError(f'device must be "auto", "cpu", "cuda", "cuda:<index>" or "simulator", got {name!r}.')
    if match[1] in ("cpu", "simulator"):
        return Device(match[1])
    problem = _cuda_problem(meanwhile)
    if match[1] == "auto":
        if isinstance(problem, MissingExtraError):
            warnings.warn(f'{problem} Running on the CPU; pass device="cpu" to choose that.', stacklevel=4)
        return Device("cpu") if problem else Device("cuda", _cupy().cuda.runtime.getDevice())
    if problem:
        raise problem
    count, ordinal = _cupy().cuda.runtime.getDeviceCount(), int(match[2] or _cupy().cuda.runtime.getDevice())
    if ordinal >= count:
        raise DeviceError(f"device {name!r} does not exist: this machine has {count} CUDA device(s), numbered from 0.")
    return Device("cuda", ordinal)


def has_several_gpus() -> bool:
    """Whether this machine has more than one GPU. The caller has checked that CUDA is available."""
    return int(_cupy().cuda.runtime.getDeviceCount()) > 1


def _cupy() -> Any:
    import cupy

    return cupy


# The process that initialized CUDA. A process that is forked from it inherits this value, and cannot use CUDA.
_cuda_process: int | None = None


def refuse_fork() -> None:
    """Refuses to use CUDA in a process that was forked after CUDA was initialized, where the driver would fail later or hang.

    Raises:
        ForkError: this is such a process.
    """
    if _cuda_process not in (None, os.getpid()):
        raise ForkError(
            f"CUDA was started in process {_cuda_process} and is used in {os.getpid()}, which was forked from it; CUDA does "
            "not survive a fork: start the process with 'spawn', or use CUDA in it alone."
        )


def _cuda_problem(meanwhile: Callable[[], None] | None = None) -> DeviceError | MissingExtraError | None:
    """The error that tells why CUDA cannot be used, or None; `meanwhile` is called while the driver is initialized."""
    from cuda.bindings import driver

    def initialize() -> bool:
        try:
            return int(driver.cuInit(0)[0]) == 0
        except RuntimeError:  # there is no libcuda
            return False

    global _cuda_process
    refuse_fork()
    if meanwhile is None:
        is_usable = initialize()
    else:  # in another thread, which runs no Python
        with ThreadPoolExecutor(1) as executor:
            initialization = executor.submit(initialize)
            if not wait([initialization], DRIVER_ANSWER_SECONDS).done:
                meanwhile()
            is_usable = initialization.result()
    if is_usable:
        _cuda_process = os.getpid()
    else:
        return DeviceError(
            'no usable CUDA driver on this machine; use device="cpu", or install the driver and see `gpuvec doctor`.'
        )
    try:
        _cupy()
    except ImportError as error:
        return MissingExtraError(
            f"a CUDA device is here but CuPy is not ({error}): {install_command('cuda13')}, or cuda12 in place of cuda13."
        )
    return None
