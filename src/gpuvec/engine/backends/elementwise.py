"""Launchers of elementwise operations, whose kernels are loaded from disk or compiled.

A process that loads a kernel from disk imports no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import cast

import numpy as np

from gpuvec.engine.backends.cache.key import module_fingerprint
from gpuvec.engine.backends.cache.store import load_or_compile
from gpuvec.engine.backends.cpu.object_code import ObjectCode, is_cacheable, load_object, target_description
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.backends.device import Device
from gpuvec.engine.backends.elementwise_operation import Elementwise


def make_elementwise_launcher(operation: Elementwise, device: Device) -> Callable[..., None]:
    """Makes `launch(stream, *members, n)`, which applies an operation to n rows; a CPU ignores the stream.

    Args:
        operation: the function of a row.
        device: where it runs.
    """
    if device.kind == "cpu":
        loop = _cpu_loop(operation)
        return lambda stream, *members: loop(members)
    if device.kind == "cuda":
        return _cuda_launcher(operation, device)
    from gpuvec.engine.backends.cuda import numba_cuda
    from gpuvec.engine.backends.simulator import short_switch_interval

    kernel, batch = numba_cuda.cuda.jit(kernel_body(operation)), operation.batch

    def launch(stream: int, *members: int) -> None:
        with short_switch_interval():
            kernel[-(-members[-1] // operation.threads), operation.threads](batch(*members))

    return launch


def _key(operation: Elementwise, target: object) -> Callable[[], str]:
    """Computes the hash of all that the kernel for a `target` is compiled from."""
    return partial(
        module_fingerprint,
        operation.make_function,
        (operation.name, operation.members),
        (operation.settings, operation.threads),
        target,
    )


@lru_cache(maxsize=64)
def _cpu_loop(operation: Elementwise) -> Callable[[tuple[int, ...]], None]:
    """The loop over all rows on a CPU, whose argument is the members of the batch."""

    def compile_all() -> list[ObjectCode]:
        # Not beside the kernels for a GPU, which need numba-cuda: it has no builds for macOS.
        from gpuvec.engine.backends.cpu.loops import compile_native, make_batch_reader
        from gpuvec.engine.compiler.memory_ops import cpu_memory_ops

        function = operation.make_function(cpu_memory_ops(), *operation.settings)
        read_batch = make_batch_reader(operation.batch)

        def loop(address: int, scratch: int) -> None:
            b = read_batch(address)
            for row in range(b.n):
                function(b, row)

        return [compile_native(loop, 0)]

    (loop,) = load_or_compile(_key(operation, target_description()), compile_all, ObjectCode, is_cacheable)
    run = load_object(loop)

    def call(members: tuple[int, ...]) -> None:
        arguments = np.array(members, np.int64)
        run(arguments.ctypes.data, 0)

    return call


@lru_cache(maxsize=64)
def load_or_compile_elementwise(operation: Elementwise, cc: tuple[int, int]) -> Binary:
    """The kernel of an operation, from disk if it was compiled before.

    Args:
        operation: the function of a row.
        cc: the compute capability.
    """

    def compile_all() -> list[Binary]:
        from gpuvec.engine.backends.cuda import linker, numba_cuda

        signature = numba_cuda.kernel_signature(operation.batch, None, ())
        ltoir = numba_cuda.compile_kernel(kernel_body(operation), signature, cc, "ltoir", operation.threads)
        return [linker.link(ltoir, cc)._replace(log="")]

    (binary,) = load_or_compile(_key(operation, cc), compile_all, Binary)
    return binary


@lru_cache(maxsize=64)
def kernel_body(operation: Elementwise) -> Callable[..., None]:
    """The Python function of the kernel that applies an operation, for the compiler or the simulator.

    Args:
        operation: the function of a row.
    """
    from numba import njit

    from gpuvec.engine.backends.cuda import numba_cuda
    from gpuvec.engine.compiler.functions import generate_function

    function = operation.make_function(numba_cuda.cuda_memory_ops(), *operation.settings)
    if numba_cuda.SIMULATED:  # in interpreted code a float32 would become a double
        function = njit(function.py_func, error_model="numpy")  # type: ignore[attr-defined]  # of Numba's dispatchers

    source = f"def kernel(b):\n    row = cuda.blockIdx.x * {operation.threads} + cuda.threadIdx.x\n"
    source += "    if row < b.n:\n        function(b, row)\n"
    # The simulator replaces the global `cuda` while it runs the kernel.
    return cast(Callable[..., None], generate_function("kernel", source, cuda=numba_cuda.cuda, function=function))


def _cuda_launcher(operation: Elementwise, device: Device) -> Callable[..., None]:
    from cuda import core
    from cuda.bindings import driver

    from gpuvec.engine.backends.cuda.launch import check_driver, load_on_device

    binary = load_or_compile_elementwise(operation, tuple(core.Device(device.ordinal).compute_capability))
    function, loaded = load_on_device(device, binary.code, binary.name)
    arguments = np.zeros(len(operation.batch._fields), np.uint64)
    pointers = arguments.ctypes.data + 8 * np.arange(len(arguments), dtype=np.uint64)
    launch_kernel = partial(driver.cuLaunchKernel, function)

    # The driver has only the addresses of what `keep` holds.
    def launch(stream: int, *members: int, keep: tuple[object, ...] = (arguments, pointers, loaded)) -> None:
        arguments[:] = members
        grid = -(-members[-1] // operation.threads), 1, 1, operation.threads, 1, 1, 0
        check_driver(launch_kernel(*grid, stream, pointers.ctypes.data, 0), "launched")

    return launch
