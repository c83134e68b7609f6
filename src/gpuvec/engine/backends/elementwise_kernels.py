"""Compiles a function of a row to a loop over rows for the CPU, or to a kernel for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from gpuvec.engine.backends.cpu.loops import compile_native, make_batch_reader
from gpuvec.engine.backends.cpu.object_code import ObjectCode
from gpuvec.engine.backends.cuda import linker, numba_cuda
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.compiler.memory_ops import cpu_memory_ops
from gpuvec.engine.compiler.types import Batch


def compile_loop(operation: Elementwise) -> ObjectCode:
    """Compiles `loop(address, scratch)`, which applies an operation to all rows of the batch whose members are at the address.

    Args:
        operation: the function of a row.
    """
    function, read_batch = operation.make_function(cpu_memory_ops(), *operation.settings), make_batch_reader(operation.batch)

    def loop(address: int, scratch: int) -> None:
        b = read_batch(address)
        for row in range(b.n):
            function(b, row)

    return compile_native(loop, 0)


@lru_cache(maxsize=64)
def kernel_body(operation: Elementwise) -> Callable[[Batch], None]:
    """The Python function of the kernel that applies an operation, for the compiler or the simulator.

    Args:
        operation: the function of a row.
    """
    from numba import njit

    function = operation.make_function(numba_cuda.cuda_memory_ops(), *operation.settings)
    if numba_cuda.SIMULATED:  # in interpreted code a float32 would become a double
        function = njit(function.py_func, error_model="numpy")  # type: ignore[attr-defined]  # of Numba's dispatchers

    source = f"def kernel(b):\n    row = cuda.blockIdx.x * {operation.threads} + cuda.threadIdx.x\n"
    source += "    if row < b.n:\n        function(b, row)\n"
    # The simulator replaces the global `cuda` while it runs the kernel.
    return cast(Callable[[Batch], None], generate_function("kernel", source, cuda=numba_cuda.cuda, function=function))


@lru_cache(maxsize=64)
def compile_elementwise(operation: Elementwise, cc: tuple[int, int]) -> Binary:
    """Compiles the kernel that applies an operation.

    Args:
        operation: the function of a row.
        cc: the compute capability.
    """
    signature = numba_cuda.kernel_signature(operation.batch, None, ())
    return linker.link(numba_cuda.compile_kernel(kernel_body(operation), signature, cc, "ltoir", operation.threads), cc)
