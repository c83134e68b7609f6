"""Functions of single rows as kernels, for what is done to a batch besides its game: to draw actions, to sum up rewards.

A thread has a row on a GPU, a loop goes over them on a CPU. A function gets the batch, a NamedTuple of addresses and numbers,
and the row, and reads and writes by the operations of `memory.Access`, as composed environments do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.batch import batch_of
from gpuvec.engine.device import Device
from gpuvec.engine.jit import compile_for, generated
from gpuvec.engine.memory import host_memory


class Rowwise(NamedTuple):
    """What is done to each row. Equal ones are compiled once in a process."""

    name: str
    members: tuple[str, ...]  # of the batch: addresses of arrays, and numbers of 64 bits
    make: Callable[..., Any]  # make(access, *settings) -> function(b, row)
    settings: tuple[Any, ...] = ()  # what the code is made for
    threads: int = 256  # per block

    @property
    def batch(self) -> Any:
        """The class of `b`, whose last member `n` is the number of rows."""
        return batch_of(self.members)


def launcher(work: Rowwise, device: Device) -> Callable[..., None]:
    """`launch(stream, *members, n)`: does it to n rows; a CPU ignores the stream."""
    if device.kind == "cpu":
        loop = _loop(work)
        return lambda stream, *members: loop(members)
    return _launcher(work, device)


@lru_cache(maxsize=64)
def _loop(work: Rowwise) -> Any:
    from numba import njit, types

    batch, one = work.batch, work.make(host_memory(), *work.settings)

    @njit(nogil=True, error_model="numpy")
    def loop(members: Any) -> None:
        b = batch(*members)
        for row in range(b.n):
            one(b, row)

    compile_for(loop, (types.UniTuple(types.int64, len(work.members) + 1),))
    return loop


@lru_cache(maxsize=64)
def body(work: Rowwise) -> Any:
    """Its kernel, for the compiler or the simulator."""
    from numba import njit

    from gpuvec.engine import cuda as target

    one = work.make(target.device_memory(), *work.settings)
    if target.SIMULATED:  # a thread is a call, and a float32 that passes through Python would come back a double
        one = njit(one.py_func, error_model="numpy")

    source = f"def kernel(b):\n    row = cuda.blockIdx.x * {work.threads} + cuda.threadIdx.x\n"
    source += "    if row < b.n:\n        one(b, row)\n"
    return generated("kernel", source, cuda=target.cuda, one=one)  # `cuda` a global, where the simulator puts its own


@lru_cache(maxsize=64)
def binary(work: Rowwise, cc: tuple[int, int]) -> Any:
    """Its machine code for compute capability `cc`."""
    from gpuvec.engine import cuda as target

    signature = target.kernel_signature(work.batch, None, ())
    return target.link(target.intermediate(body(work), signature, cc, "ltoir", work.threads), cc)


def _launcher(work: Rowwise, device: Device) -> Callable[..., None]:
    batch = work.batch
    if device.kind == "simulator":
        from gpuvec.engine import cuda as target
        from gpuvec.engine.simulator import quick_turns

        simulated = target.cuda.jit(body(work))

        def simulate(stream: int, *members: int) -> None:
            with quick_turns():
                simulated[-(-members[-1] // work.threads), work.threads](batch(*members))

        return simulate

    from cuda import core
    from cuda.bindings import driver

    from gpuvec.engine.launch import checked, function_on

    function, keep = function_on(device, *binary(work, tuple(core.Device(device.ordinal).compute_capability))[:2])
    block = np.zeros(len(batch._fields), np.uint64)
    pointers = block.ctypes.data + 8 * np.arange(len(block), dtype=np.uint64)
    start = partial(driver.cuLaunchKernel, function)

    def launch(stream: int, *members: Any, kept: Sequence[Any] = (block, pointers, keep)) -> None:
        block[:] = members
        grid = -(-members[-1] // work.threads), 1, 1, work.threads, 1, 1, 0
        checked(start(*grid, stream, pointers.ctypes.data, 0), "launched")

    return launch
