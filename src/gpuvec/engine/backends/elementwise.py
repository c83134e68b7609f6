"""Functions of single rows as kernels, for what is done to a batch besides its game: to draw actions, to sum up rewards.

A thread has a row on a GPU, a loop goes over them on a CPU. A function gets the batch, a NamedTuple of addresses and numbers,
and the row, and reads and writes by the operations of `memory.Access`, as composed environments do. `rowwise_kernels` compiles
them; a process that finds them on disk imports no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.backends.cache.key import module_fingerprint
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cpu.object_code import ObjectCode, is_cacheable, load_object, machine
from gpuvec.engine.backends.cuda.binary import Loadable
from gpuvec.engine.backends.device import Device
from gpuvec.engine.layout.buffers import named_tuple


class Elementwise(NamedTuple):
    """What is done to each row. Equal ones are compiled once in a process."""

    name: str
    members: tuple[str, ...]  # of the batch: addresses of arrays, and numbers of 64 bits
    make: Callable[..., Any]  # make(access, *settings) -> function(b, row)
    settings: tuple[Any, ...] = ()  # what the code is made for
    threads: int = 256  # per block

    @property
    def batch(self) -> Any:
        """The class of `b`, whose last member `n` is the number of rows."""
        return named_tuple("Batch", (*self.members, "n"))


def make_elementwise_launcher(work: Elementwise, device: Device) -> Callable[..., None]:
    """`launch(stream, *members, n)`: does it to n rows; a CPU ignores the stream."""
    if device.kind == "cpu":
        loop = _loop(work)
        return lambda stream, *members: loop(members)
    return _launcher(work, device)


@lru_cache(maxsize=64)
def _loop(work: Elementwise) -> Callable[[tuple[int, ...]], None]:
    """The loop over all rows on a CPU: it takes the members of the batch."""

    def make() -> list[ObjectCode]:
        from gpuvec.engine.backends.elementwise_kernels import native_loop

        return [native_loop(work)]

    (made,) = load_or_compile(
        partial(module_fingerprint, work.make, tuple(work)[:2], tuple(work)[3:], machine()), make, ObjectCode, is_cacheable
    )
    run = load_object(made)

    def call(members: tuple[int, ...]) -> None:
        block = np.array(members, np.int64)
        run(block.ctypes.data, 0)

    return call


@lru_cache(maxsize=64)
def load_or_compile_elementwise(work: Elementwise, cc: tuple[int, int]) -> Loadable:
    """Its kernel for compute capability `cc`, from disk if it was compiled before."""

    def make() -> list[Loadable]:
        from gpuvec.engine.backends.elementwise_kernels import binary

        return [Loadable(*binary(work, cc)[:2])]

    (made,) = load_or_compile(partial(module_fingerprint, work.make, tuple(work)[:2], tuple(work)[3:], cc), make, Loadable)
    return made


def _launcher(work: Elementwise, device: Device) -> Callable[..., None]:
    batch = work.batch
    if device.kind == "simulator":
        from gpuvec.engine.backends.cuda import numba_cuda
        from gpuvec.engine.backends.elementwise_kernels import body
        from gpuvec.engine.backends.simulator import short_switch_interval

        simulated = numba_cuda.cuda.jit(body(work))

        def simulate(stream: int, *members: int) -> None:
            with short_switch_interval():
                simulated[-(-members[-1] // work.threads), work.threads](batch(*members))

        return simulate

    from cuda import core
    from cuda.bindings import driver

    from gpuvec.engine.backends.cuda.launch import check_driver, load_on_device

    function, keep = load_on_device(
        device, *load_or_compile_elementwise(work, tuple(core.Device(device.ordinal).compute_capability))
    )
    block = np.zeros(len(batch._fields), np.uint64)
    pointers = block.ctypes.data + 8 * np.arange(len(block), dtype=np.uint64)
    start = partial(driver.cuLaunchKernel, function)

    def launch(stream: int, *members: Any, kept: Sequence[Any] = (block, pointers, keep)) -> None:
        block[:] = members
        grid = -(-members[-1] // work.threads), 1, 1, work.threads, 1, 1, 0
        check_driver(start(*grid, stream, pointers.ctypes.data, 0), "launched")

    return launch
