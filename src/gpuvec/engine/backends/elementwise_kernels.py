"""Compiles functions of rows: to a loop for the CPU, or to a kernel for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from gpuvec.engine.backends.cpu.loops import compile_native, make_batch_reader
from gpuvec.engine.backends.cpu.object_code import ObjectCode
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.backends.elementwise import Elementwise
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.compiler.memory_ops import cpu_memory_ops
from gpuvec.engine.compiler.types import Batch


def compile_loop(work: Elementwise) -> ObjectCode:
    """`loop(address, scratch)`: applies `work` to all rows of the batch whose members are stored at the address."""
    function, read_batch = work.make(cpu_memory_ops(), *work.settings), make_batch_reader(work.batch)

    def loop(address: int, scratch: int) -> None:
        b = read_batch(address)
        for row in range(b.n):
            function(b, row)

    return compile_native(loop, 0)


@lru_cache(maxsize=64)
def kernel_body(work: Elementwise) -> Callable[[Batch], None]:
    """The Python function of the kernel that applies `work`, for the compiler or the simulator."""
    from numba import njit

    function = work.make(numba_cuda.cuda_memory_ops(), *work.settings)
    if numba_cuda.SIMULATED:  # interpreted code would turn a float32 into a double
        function = njit(function.py_func, error_model="numpy")  # type: ignore[attr-defined]  # of Numba's dispatchers

    source = f"def kernel(b):\n    row = cuda.blockIdx.x * {work.threads} + cuda.threadIdx.x\n"
    source += "    if row < b.n:\n        function(b, row)\n"
    # `cuda` is a global, which the simulator replaces by its own.
    return cast(Callable[[Batch], None], generate_function("kernel", source, cuda=numba_cuda.cuda, function=function))


@lru_cache(maxsize=64)
def compile_elementwise(work: Elementwise, cc: tuple[int, int]) -> Binary:
    """The machine code of the kernel that applies `work`, for compute capability `cc`."""
    signature = numba_cuda.kernel_signature(work.batch, None, ())
    return numba_cuda.link(numba_cuda.compile_kernel(kernel_body(work), signature, cc, "ltoir", work.threads), cc)
