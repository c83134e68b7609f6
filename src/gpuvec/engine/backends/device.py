"""Devices: which there are, how much they hold, and the array module that allocates on them."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.host_memory import available_bytes
from gpuvec.errors import DeviceError, ForkError, MissingExtraError, OutOfMemoryError


class Device(NamedTuple):
    """A device: "cpu", "cuda" with its number, or "simulator", where Python threads run CUDA kernels on the CPU's memory."""

    kind: str
    ordinal: int = 0

    def __str__(self) -> str:
        return f"cuda:{self.ordinal}" if self.kind == "cuda" else self.kind

    @property
    def arrays(self) -> Any:
        """The module whose arrays live on this device: NumPy or CuPy."""
        return _cupy() if self.kind == "cuda" else np

    def current(self) -> AbstractContextManager[Any]:
        """A context in which this is CUDA's current device, where kernels are launched and memory is allocated."""
        return _cupy().cuda.Device(self.ordinal) if self.kind == "cuda" else nullcontext()

    def elsewhere(self) -> bool:
        """Whether another GPU is the current device."""
        return self.kind == "cuda" and bool(_cupy().cuda.runtime.getDevice() != self.ordinal)

    def pooled_bytes(self) -> int:
        """Bytes of a GPU that CuPy's pool has taken."""
        with self.current():
            return int(_cupy().get_default_memory_pool().total_bytes())

    def free_bytes(self) -> int | None:
        """Bytes that can still be allocated; None where the system does not say."""
        if self.kind == "cuda":
            cupy = _cupy()
            with self.current():
                return int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())
        return available_bytes()

    def require(self, needed: int, what: str) -> None:
        """Raises OutOfMemoryError unless `needed` bytes are free: before the allocation, so that the process stays usable."""
        free = self.free_bytes()
        if free is not None and needed > free:
            raise OutOfMemoryError(
                f"{what} needs {needed:,} bytes on {self}, where {free:,} are free; use fewer environments, or free some."
            )


def parse_device(name: str) -> Device:
    """The device called `name`: "auto", "cpu", "cuda" or "cuda:1".

    Raises:
        ValueError: no such name.
        DeviceError: a CUDA device without a driver, or an index that does not exist.
        MissingExtraError: a CUDA device without CuPy.
        ForkError: a CUDA device in a process that was forked after CUDA started.
    """
    match = re.fullmatch(r"(auto|cpu|simulator|cuda)(?::(\d+))?", name) if isinstance(name, str) else None
    if match is None or (match[2] and match[1] != "cuda"):
        raise ValueError(f'device must be "auto", "cpu", "cuda", "cuda:<index>" or "simulator", got {name!r}.')
    if match[1] in ("cpu", "simulator"):
        return Device(match[1])
    problem = _cuda_problem()
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
    """Whether this machine has more than one GPU; asked where CUDA was found."""
    return int(_cupy().cuda.runtime.getDeviceCount()) > 1


def _cupy() -> Any:
    import cupy

    return cupy


_started_in: int | None = None  # the process that started CUDA; its forks inherit the mark, and cannot use CUDA


def refuse_fork() -> None:
    """Raises ForkError in a process that was forked after CUDA started here: the driver would fail later, or hang."""
    if _started_in not in (None, os.getpid()):
        raise ForkError(
            f"CUDA was started in process {_started_in} and is used in {os.getpid()}, which was forked from it; CUDA does not "
            "survive a fork: start the process with 'spawn', or use CUDA in it alone."
        )


def _cuda_problem() -> DeviceError | MissingExtraError | None:
    """Why CUDA cannot be used here, or None."""
    global _started_in
    from cuda.bindings import driver

    refuse_fork()
    try:
        error, *_ = driver.cuInit(0)
        found = int(error) == 0
    except RuntimeError:  # no libcuda
        found = False
    if found:
        _started_in = os.getpid()
    else:
        return DeviceError(
            'no usable CUDA driver on this machine; use device="cpu", or install the driver and see `gpuvec doctor`.'
        )
    try:
        _cupy()
    except ImportError as error:
        return MissingExtraError(f"a CUDA device is here but CuPy is not ({error}): install gpuvec[cuda13] or gpuvec[cuda12].")
    return None
