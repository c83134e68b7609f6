"""Compiles a function of a row to a kernel for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from gpuvec.engine.backends.cuda import linker, numba_cuda
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.compiler.types import Batch


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
