"""The compiler for CUDA and its simulator: what composed functions need of it, and kernels as machine code.

The only module that imports `numba.cuda`. numba-cuda is in maintenance; what its successor will change is all here.
Kernels are compiled to LTO-IR and linked to a cubin by nvJitLink, with or without a GPU, so nobody needs nvcc.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import config

from gpuvec.engine.backends.cuda import dependent_launch
from gpuvec.engine.backends.cuda.binary import Binary
from gpuvec.engine.compiler import counted_range
from gpuvec.engine.compiler.array_ops import ArrayOps, cpu_array_ops, make_array_ops
from gpuvec.engine.compiler.extern_call import extern_c_call as of_c
from gpuvec.engine.compiler.frames import with_large_frame
from gpuvec.engine.compiler.functions import is_inline, without_literals
from gpuvec.engine.compiler.memory_ops import MemoryOps, cpu_memory_ops, make_memory_ops
from gpuvec.engine.multi_agent.reductions import SharedCounters, cpu_shared_counters

SIMULATED = bool(config.ENABLE_CUDASIM)


def _shared_array(self: Any, shape: Any, dtype: Any) -> Any:
    """A simulated block's shared array, known by the line that asks for it. All threads ask: only one may make it, and the
    simulator's own way to see to that lets others run between the question whether it is there and the answer.
    """
    asking = sys._getframe(1)
    return self._allocations.setdefault((asking.f_code.co_filename, asking.f_lineno), np.empty(shape, dtype))


def _serve_all_literals(dispatcher: Any) -> None:
    """As `inline` does on a CPU: numba-cuda makes dispatchers of its own out of those that `inline` gives."""
    template = dispatcher.get_call_template

    def get_call_template(self: Any, args: Any, kws: Any) -> Any:
        return template(self, *(without_literals(args, kws) if is_inline(self.py_func) else (args, kws)))

    dispatcher.get_call_template = get_call_template


def _import_cuda() -> Any:
    """`numba.cuda`. NumPy 2.5 dropped `row_stack`, an alias of `vstack` which numba-cuda 0.30 still looks up once."""
    missing = not hasattr(np, "row_stack")
    if missing:
        np.row_stack = np.vstack
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5, for a timedelta64 that numba-cuda makes
            from numba import cuda

            if SIMULATED:
                from numba.cuda.simulator.kernelapi import FakeCUDAShared

                FakeCUDAShared.array = _shared_array
            else:
                import numba.cuda.np.arrayobj  # noqa: F401  # the module that looks it up
                from numba.cuda import cgutils, extending, types
                from numba.cuda.core import imputils
                from numba.cuda.dispatcher import CUDADispatcher

                _serve_all_literals(CUDADispatcher)
                counted_range.register(extending, types, cgutils, imputils)
    finally:
        if missing:
            del np.row_stack
    return cuda


cuda = _import_cuda()


@cache
def cuda_memory_ops() -> MemoryOps:
    """The operations on a GPU's global memory; in the simulator, where a thread is a call of CPU code, on the CPU's."""
    if SIMULATED:
        return cpu_memory_ops()
    from numba.cuda import cgutils, extending, types

    @cuda.jit(device=True, forceinline=True)
    def any_in_sector(flag: bool) -> bool:
        pair = np.uint32(3) << np.uint32(cuda.laneid & 30)
        return (cuda.ballot_sync(cuda.activemask(), flag) & pair) != np.uint32(0)

    return make_memory_ops(extending, types, cgutils, 1, any_in_sector)


@cache
def cuda_array_ops() -> ArrayOps:
    """Likewise the further operations of environments with many agents."""
    if SIMULATED:
        return cpu_array_ops()
    from numba.cuda import cgutils, extending, types

    return make_array_ops(extending, types, cgutils, 1)


@cache
def wait_for_previous() -> Any:
    """`wait_for_previous()`, the first that a kernel does, so that it can be launched early; in the simulator nothing."""
    if SIMULATED:
        return lambda: None
    from numba.cuda import extending, types
    from numba.cuda.core.targetconfig import ConfigStack

    return dependent_launch.wait_for_previous(extending, types, lambda: ConfigStack.top_or_none().compute_capability)


@cache
def cuda_shared_counters() -> SharedCounters:
    """Atomic operations on counters in shared memory."""
    if SIMULATED:
        return cpu_shared_counters()

    @cuda.jit(device=True, forceinline=True)
    def count(array: Any, k: int, j: int) -> None:
        cuda.atomic.add(array, (k, j), 1)

    @cuda.jit(device=True, forceinline=True)
    def most(array: Any, k: int, j: int, value: int) -> None:
        cuda.atomic.max(array, (k, j), value)

    @cuda.jit(device=True, forceinline=True)
    def most_of_block(array: Any, k: int, j: int, value: int) -> None:
        for other in (16, 8, 4, 2, 1):  # among the lanes of a warp first: a shared counter takes them one after the other
            value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, other))
        if cuda.laneid == 0:
            cuda.atomic.max(array, (k, j), value)

    return SharedCounters(count, most, most_of_block)


def kernel_signature(batch: Any, request: Any | None, dtypes: tuple[Any, ...]) -> Any:
    """The Numba signature of a kernel that takes a batch, and with `request` such a one with members of those dtypes."""
    from numba.cuda import types
    from numba.cuda.np.numpy_support import from_dtype

    b = types.NamedTuple([types.uint64] * (len(batch._fields) - 1) + [types.int64], batch)
    if request is None:
        return types.void(b)
    return types.void(b, types.NamedTuple([from_dtype(np.dtype(t)) for t in dtypes], request))


@with_large_frame
def compile_kernel(
    kernel: Any, signature: Any, cc: tuple[int, int], form: str, threads: int | None = None, resident: int = 1
) -> Any:
    """`kernel` as "ltoir" (bytes) or "ptx" (text) for compute capability `cc`, fit for blocks of `threads`, of which `resident`
    find registers on a multiprocessor.
    """
    bounds = None if threads is None else (threads, resident)
    return cuda.compile(kernel, signature, cc=cc, device=False, abi="numba", output=form, launch_bounds=bounds)[0]


@with_large_frame
def compile_extern_c(function: Any, arguments: str, name: str, cc: tuple[int, int]) -> bytes:
    """A device function as LTO-IR, with C's calling convention, for kernels in CUDA C++ to be linked with.

    It takes `arguments` such as "int64 uint32*", addresses with a star, and gives an int32.
    """
    from numba.cuda import types

    kinds = ((getattr(types, kind.rstrip("*")), kind.endswith("*")) for kind in arguments.split())
    signature = types.int32(*(types.CPointer(kind) if pointer else kind for kind, pointer in kinds))
    code, _ = cuda.compile(function, signature, cc=cc, device=True, abi="c", abi_info={"abi_name": name}, output="ltoir")
    return bytes(code)


def extern_c_call(symbol: str, gives: Sequence[Any]) -> Any:
    """`foreign.foreign` for a GPU."""
    from numba.cuda import cgutils, extending, types
    from numba.cuda.np.numpy_support import from_dtype

    return of_c(extending, types, cgutils, symbol, [from_dtype(np.dtype(kind)) for kind in gives])


def link(ltoir: Any, cc: tuple[int, int], logged: bool = False, others: Sequence[bytes] = ()) -> Binary:
    """LTO-IR of one kernel, with that of functions which it calls, as machine code for compute capability `cc`; if `logged`,
    anew, as one from the cache has no log.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}", link_time_optimization=True, verbose=logged, no_cache=logged)
    linker = Linker(*map(ObjectCode.from_ltoir, (bytes(ltoir), *others)), options=options)
    cubin = bytes(linker.link("cubin").code)
    name = re.search(rb"\.nv\.constant0\.(\w+)", cubin)
    assert name is not None, "a cubin holds the section of its kernel's arguments"
    return Binary(cubin, name[1].decode(), linker.get_info_log())


@contextmanager
def offline(cc: tuple[int, int]) -> Iterator[None]:
    """Lets kernels be compiled for `cc` on a machine without a GPU.

    numba-cuda asks the current device for its compute capability whenever a kernel calls a function, whatever `cc` says.
    """
    from numba.cuda import dispatcher

    asked = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=cc)
    try:
        yield
    finally:
        dispatcher.get_current_device = asked
