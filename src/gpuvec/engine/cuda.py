"""Kernels for CUDA, and for its simulator: the composed functions, one env per thread.

The only module that imports `numba.cuda`. numba-cuda is in maintenance; what its successor will change is all here.
Kernels are compiled to LTO-IR and linked to a cubin by nvJitLink, with or without a GPU, so nobody needs nvcc.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import config, njit

from gpuvec.engine.batch import Layout, Variant
from gpuvec.engine.jit import inline
from gpuvec.engine.memory import Access, host_memory, memory
from gpuvec.engine.single import compose, request, request_dtypes
from gpuvec.spec import Single

SIMULATED = bool(config.ENABLE_CUDASIM)
THREADS = 32 if SIMULATED else 256  # per block; 64 to 512 differ by less than 2 % where memory is the limit


def _import_cuda() -> Any:
    """`numba.cuda`. NumPy 2.5 dropped `row_stack`, an alias of `vstack` which numba-cuda 0.30 still looks up once."""
    missing = not hasattr(np, "row_stack")
    if missing:
        np.row_stack = np.vstack
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5, for a timedelta64 that numba-cuda makes
            from numba import cuda

            if not SIMULATED:
                import numba.cuda.np.arrayobj  # noqa: F401  # the module that looks it up
    finally:
        if missing:
            del np.row_stack
    return cuda


cuda = _import_cuda()


class Binary(NamedTuple):
    """A kernel as machine code: the cubin and the kernel's name in it."""

    cubin: bytes
    name: str


def device_memory() -> Access:
    """The operations on a GPU's global memory; in the simulator, where a thread is a call of CPU code, on the CPU's."""
    if SIMULATED:
        return host_memory()
    from numba.cuda import cgutils, extending, types

    @cuda.jit(device=True, forceinline=True)
    def near(flag: bool) -> bool:
        pair = np.uint32(3) << np.uint32(cuda.laneid & 30)
        return (cuda.ballot_sync(cuda.activemask(), flag) & pair) != np.uint32(0)

    return memory(extending, types, cgutils, 1, near)


def kernels(env: Single, variant: Variant) -> tuple[Any, Any]:
    """The bodies of (reset, step), each called with a batch (and `reset` with a request) by every thread."""
    access = device_memory()
    begin, advance = compose(env, variant, access)
    load, store, u32 = access.load, access.store, np.uint32

    @inline
    def read_clock(b: Any, block: int) -> int:
        return load(b.clock, block, u32)

    @inline
    def write_clock(b: Any, block: int, clock: int) -> None:
        store(b.clock, block, u32(clock), u32)

    if SIMULATED:  # from one barrier to the next a thread is one call: a float32 that passes through Python comes back a double
        begin, advance, read_clock, write_clock = (
            njit(f.py_func, error_model="numpy") for f in (begin, advance, read_clock, write_clock)
        )

    def reset(b: Any, r: Any) -> None:
        e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if e < b.n:
            begin(b, e, read_clock(b, cuda.blockIdx.x), r)

    def step(b: Any) -> None:
        # Each block has its own clock: a late block could read a common one after an early block moved it on.
        clock = u32(read_clock(b, cuda.blockIdx.x) + u32(1))
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            write_clock(b, cuda.blockIdx.x, clock)
        e = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if e < b.n:
            advance(b, e, clock)

    return reset, step


def signatures(env: Single, layout: Layout) -> tuple[Any, Any]:
    """The Numba signatures of (reset, step)."""
    from numba.cuda import types
    from numba.cuda.np.numpy_support import from_dtype

    batch = layout.batch
    b = types.NamedTuple([types.uint64] * (len(batch._fields) - 1) + [types.int64], batch)
    r = types.NamedTuple([from_dtype(np.dtype(t)) for t in request_dtypes(env)], request(env))
    return types.void(b, r), types.void(b)


def intermediate(kernel: Any, signature: Any, cc: tuple[int, int], form: str) -> Any:
    """`kernel` as "ltoir" (bytes) or "ptx" (text) for compute capability `cc`."""
    return cuda.compile(kernel, signature, cc=cc, device=False, abi="numba", output=form)[0]


def link(ltoir: Any, cc: tuple[int, int]) -> Binary:
    """LTO-IR of one kernel as machine code for compute capability `cc`."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}", link_time_optimization=True)
    cubin = bytes(Linker(ObjectCode.from_ltoir(bytes(ltoir)), options=options).link("cubin").code)
    name = re.search(rb"\.text\.(\w+)", cubin)
    assert name is not None, "a cubin holds the section of its kernel"
    return Binary(cubin, name[1].decode())


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
