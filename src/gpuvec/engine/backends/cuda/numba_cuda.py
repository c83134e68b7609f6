"""The compiler for CUDA and Numba's CUDA simulator: operations for composed functions, and kernels as machine code.

This module and `numba_cuda_target` alone import `numba.cuda`, which is in maintenance, so what depends on it is in one place.
Kernels are compiled to LTO-IR, which `linker` links, and need neither a GPU nor nvcc.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llvmlite import ir
from numba import config
from numpy.typing import NDArray

from gpuvec.engine.backends.cuda import dependent_launch
from gpuvec.engine.compiler.array_ops import ArrayOps, cpu_array_ops, make_array_ops
from gpuvec.engine.compiler.frames import with_large_frame
from gpuvec.engine.compiler.llvm import Args, Builder
from gpuvec.engine.compiler.memory_ops import MemoryOps, cpu_memory_ops, make_memory_ops
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, DType, NumbaModule, Signature, TargetContext
from gpuvec.engine.multi_agent.context import SharedCounters, cpu_shared_counters

SIMULATED = bool(config.ENABLE_CUDASIM)
_shared_arrays: WeakKeyDictionary[Any, dict[str, NDArray[Any]]] = WeakKeyDictionary()  # of simulated blocks


def simulated_shared_array(shared: Any, name: str, shape: Any, dtype: DType) -> NDArray[Any]:
    """Returns the shared array with a name of a simulated block.

    Every thread requests the array, and all must receive the same one. The simulator's own `cuda.shared.array` can switch
    threads between the test whether the array exists and its creation; `setdefault` is atomic.

    Args:
        shared: the block's `cuda.shared`.
        name: of the array, unique in the kernel.
        shape: as for `numpy.empty`.
        dtype: as for `numpy.empty`.
    """
    return _shared_arrays.setdefault(shared, {}).setdefault(name, np.empty(shape, dtype))


def _import_cuda() -> NumbaModule:
    """`numba.cuda`. NumPy 2.5 dropped `row_stack`, an alias of `vstack`, which numba-cuda 0.30 looks up when it is imported."""
    is_missing = not hasattr(np, "row_stack")
    if is_missing:
        np.row_stack = np.vstack
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5, for a timedelta64 that numba-cuda creates
            from numba import cuda

            if not SIMULATED:
                import numba.cuda.np.arrayobj  # noqa: F401  # it looks `row_stack` up
    finally:
        if is_missing:
            del np.row_stack
    return cuda


cuda = _import_cuda()
# A thread holds this lock while it compiles, and while it composes the functions that are compiled.
compiler_lock: AbstractContextManager[None] = nullcontext()
if not SIMULATED:
    from numba.cuda.core.compiler_lock import global_compiler_lock

    from gpuvec.engine.backends.cuda.numba_cuda_target import NUMBA_CUDA, compile_for_gpu

    compiler_lock = global_compiler_lock


@cache
def cuda_memory_ops() -> MemoryOps:
    """The operations on a GPU's global memory; in the simulator, whose threads call CPU code, on the CPU's memory."""
    if SIMULATED:
        return cpu_memory_ops()

    @cuda.jit(device=True, forceinline=True)
    def any_in_sector(flag: bool) -> bool:
        lane_pair = np.uint32(3) << np.uint32(cuda.laneid & 30)
        return (cuda.ballot_sync(cuda.activemask(), flag) & lane_pair) != np.uint32(0)

    return make_memory_ops(NUMBA_CUDA, any_in_sector)


@cache
def cuda_array_ops() -> ArrayOps:
    """The operations on arrays and tuples for a GPU; in the simulator, for the CPU."""
    return cpu_array_ops() if SIMULATED else make_array_ops(NUMBA_CUDA)


@cache
def wait_for_previous() -> DeviceFunction:
    """`wait_for_previous()`, which every kernel calls first (`dependent_launch`); in the simulator it does nothing."""
    if SIMULATED:
        return lambda: None
    from numba.cuda.core.targetconfig import ConfigStack

    def codegen(_: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> None:
        function = ir.FunctionType(ir.VoidType(), [])
        is_supported = dependent_launch.is_supported(ConfigStack.top_or_none().compute_capability)
        for instruction in (dependent_launch.LAUNCH_DEPENDENTS, dependent_launch.WAIT) if is_supported else ():
            # The memory clobber keeps the compiler from moving memory accesses across the instruction.
            builder.call(ir.InlineAsm(function, instruction, "~{memory}", side_effect=True), [])

    return NUMBA_CUDA.intrinsic("wait_for_previous", lambda _: NUMBA_CUDA.types.void(), codegen)


@cache
def cuda_shared_counters() -> SharedCounters:
    """Atomic operations on counters in shared memory."""
    if SIMULATED:
        return cpu_shared_counters()
    numba_array = cuda_array_ops().numba_array

    @cuda.jit(device=True, forceinline=True)
    def increment(array: NDArray[np.int32], k: int, j: int) -> None:
        cuda.atomic.add(numba_array(array), (k, j), 1)

    @cuda.jit(device=True, forceinline=True)
    def update_max(array: NDArray[np.int32], k: int, j: int, value: int) -> None:
        cuda.atomic.max(numba_array(array), (k, j), value)

    @cuda.jit(device=True, forceinline=True)
    def update_max_by_block(array: NDArray[np.int32], k: int, j: int, value: int) -> None:
        # A warp's lanes are reduced first, since atomic operations on one shared counter are serialised.
        for lane_mask in (16, 8, 4, 2, 1):
            value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, lane_mask))
        if cuda.laneid == 0:
            cuda.atomic.max(numba_array(array), (k, j), value)

    return SharedCounters(increment, update_max, update_max_by_block)


def kernel_signature(batch: type, request: type | None, dtypes: Sequence[DType]) -> Signature:
    """The Numba signature of a kernel.

    Args:
        batch: the class of its first argument, a NamedTuple of addresses with a last member of int64.
        request: the class of its second argument, a NamedTuple; None if it has no second argument.
        dtypes: the dtypes of the members of `request`.
    """
    from numba.cuda import types
    from numba.cuda.np.numpy_support import from_dtype

    member_types = [types.uint64] * (len(batch._fields) - 1) + [types.int64]  # type: ignore[attr-defined]  # a NamedTuple
    batch_type = types.NamedTuple(member_types, batch)
    if request is None:
        return types.void(batch_type)
    return types.void(batch_type, types.NamedTuple([from_dtype(np.dtype(dtype)) for dtype in dtypes], request))


@with_large_frame
def compile_kernel(
    kernel: Callable[..., None],
    signature: Signature,
    cc: tuple[int, int],
    output: str,
    threads: int | None = None,
    min_blocks_per_sm: int = 1,
) -> Any:
    """Compiles a kernel.

    Args:
        kernel: a Python function.
        signature: the Numba types of its arguments.
        cc: the compute capability.
        output: "ltoir" for bytes, "ptx" for text.
        threads: the block size that registers are allocated for; None for any.
        min_blocks_per_sm: how many blocks must have enough registers on one multiprocessor.
    """
    bounds = None if threads is None else (threads, min_blocks_per_sm)
    return compile_for_gpu(kernel, signature, cc, output, launch_bounds=bounds)


@with_large_frame
def compile_extern_c(function: DeviceFunction, arguments: str, name: str, cc: tuple[int, int]) -> bytes:
    """Compiles a device function to LTO-IR with C's calling convention, for linking with kernels in CUDA C++.

    Args:
        function: returns an int32.
        arguments: types of the arguments such as "int64 uint32*", where a star marks an address.
        name: the symbol.
        cc: the compute capability.
    """
    from numba.cuda import types

    kinds = ((getattr(types, kind.rstrip("*")), kind.endswith("*")) for kind in arguments.split())
    signature = types.int32(*(types.CPointer(kind) if is_pointer else kind for kind, is_pointer in kinds))
    return bytes(compile_for_gpu(function, signature, cc, "ltoir", name))
