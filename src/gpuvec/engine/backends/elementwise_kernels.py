"""Functions of single rows, compiled: a loop for the CPU, a kernel for a GPU, and its body for the simulator."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpuvec.engine.backends.cpu.loops import compile_native, read_members
from gpuvec.engine.backends.cpu.object_code import ObjectCode
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.backends.elementwise import Elementwise
from gpuvec.engine.compiler.functions import generate_function
from gpuvec.engine.compiler.memory_ops import cpu_memory_ops


def native_loop(work: Elementwise) -> ObjectCode:
    """`loop(m, room)`: does the work to all rows of the batch whose members are at address `m`."""
    one, read = work.make(cpu_memory_ops(), *work.settings), read_members(work.batch)

    def loop(m: int, room: int) -> None:
        b = read(m)
        for row in range(b.n):
            one(b, row)

    return compile_native(loop, 0)


@lru_cache(maxsize=64)
def body(work: Elementwise) -> Any:
    """Its kernel, for the compiler or the simulator."""
    from numba import njit

    one = work.make(numba_cuda.cuda_memory_ops(), *work.settings)
    if numba_cuda.SIMULATED:  # a thread is a call, and a float32 that passes through Python would come back a double
        one = njit(one.py_func, error_model="numpy")

    source = f"def kernel(b):\n    row = cuda.blockIdx.x * {work.threads} + cuda.threadIdx.x\n"
    source += "    if row < b.n:\n        one(b, row)\n"
    return generate_function(
        "kernel", source, cuda=numba_cuda.cuda, one=one
    )  # `cuda` a global, where the simulator puts its own


@lru_cache(maxsize=64)
def binary(work: Elementwise, cc: tuple[int, int]) -> Any:
    """Its machine code for compute capability `cc`."""
    signature = numba_cuda.kernel_signature(work.batch, None, ())
    return numba_cuda.link(numba_cuda.compile_kernel(body(work), signature, cc, "ltoir", work.threads), cc)
