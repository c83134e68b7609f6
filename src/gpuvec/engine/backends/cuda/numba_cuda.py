"""The compiler for CUDA and Numba's CUDA simulator: operations for composed functions, and kernels as machine code.

This is the only module that imports `numba.cuda`. numba-cuda is in maintenance, so what depends on it is in one place.
Kernels are compiled to LTO-IR, which `linker` links, and need neither a GPU nor nvcc.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numba import config
from numpy.typing import NDArray

from gpuvec.engine.backends.cuda.call_convention import pass_tuples_whole
from gpuvec.engine.backends.cuda.compiled_functions import (
    compile_for_caller,
    find_location_arguments_in_code,
    link_modules_once,
    name_options_once,
    refresh_changed_registries,
    replace_where_needed,
    verify_on_request,
    widen_literals,
)
from gpuvec.engine.backends.cuda.constant_arrays import store_constant_arrays_as_bytes
from gpuvec.engine.backends.cuda.dependent_launch import make_wait_for_previous
from gpuvec.engine.backends.cuda.type_inference import (
    compute_sizes_once,
    infer_functions_without_loops_once,
    look_up_functions_first,
    omit_texts_of_statements,
    record_warnings_once,
)
from gpuvec.engine.compiler.array_ops import ArrayOps, cpu_array_ops, make_array_ops
from gpuvec.engine.compiler.counted_range import register_counted_range
from gpuvec.engine.compiler.extern_call import extern_c_call
from gpuvec.engine.compiler.frames import with_large_frame
from gpuvec.engine.compiler.functions import add_kernel
from gpuvec.engine.compiler.memory_ops import MemoryOps, cpu_memory_ops, make_memory_ops
from gpuvec.engine.compiler.numba_api import GLOBAL_MEMORY, NumbaApi
from gpuvec.engine.compiler.operator_signatures import infer_operators_once
from gpuvec.engine.compiler.pass_pipeline import (
    analyze_pipelines_once,
    compute_lifetimes_on_demand,
    count_assignments_once,
    list_variables_directly,
    run_passes_directly,
    skip_steps_without_instructions,
)
from gpuvec.engine.compiler.single_assignment import rewrite_blocks_with_variable
from gpuvec.engine.compiler.types import DeviceFunction, DType, NumbaModule, Signature
from gpuvec.engine.multi_agent.shared_counters import SharedCounters, cpu_shared_counters

SIMULATED = bool(config.ENABLE_CUDASIM)


def _shared_array(self: Any, shape: Any, dtype: DType) -> NDArray[Any]:
    """A shared array of a simulated block, which the caller's file and line identify.

    Every thread requests the array, and all must receive the same one. The simulator's own method can switch threads between
    the test whether the array exists and its creation; `setdefault` is atomic.
    """
    caller = sys._getframe(1)
    return self._allocations.setdefault((caller.f_code.co_filename, caller.f_lineno), np.empty(shape, dtype))


def _import_without_linear_algebra() -> None:
    """Imports numba-cuda's module of NumPy functions, which itself imports SciPy's BLAS just to know whether it is there.

    That took a third of the time between the import of numba-cuda and its first compilation.
    """
    from numba.cuda.np import linalg

    def ensure_blas() -> None:
        if find_spec("scipy") is None:
            raise ImportError("SciPy is not installed")

    import_blas, linalg.ensure_blas = linalg.ensure_blas, ensure_blas
    try:
        from numba.cuda.np import arraymath
    finally:
        linalg.ensure_blas = import_blas
    arraymath.ensure_blas = import_blas


def _change_compiler() -> None:
    """Changes classes and functions of numba-cuda such that they repeat no work."""
    from numba.cuda import cgutils, dispatcher, extending, lowering, types
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.compiler import CUDACompiler, CUDANativeLowering
    from numba.cuda.core import (
        base,
        callconv,
        compiler_machinery,
        errors,
        inline_closurecall,
        interpreter,
        ir,
        postproc,
        ssa,
        typeinfer,
    )
    from numba.cuda.core.targetconfig import ConfigStack
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.datamodel import ArgPacker
    from numba.cuda.dispatcher import CUDADispatcher
    from numba.cuda.flags import CUDAFlags
    from numba.cuda.target import CUDATargetContext, CUDATypingContext

    look_up_global = infer_operators_once(_numba_cuda_api(), CUDATypingContext._lookup_global)
    CUDATypingContext._lookup_global = look_up_global
    define_pipelines = run_passes_directly(compiler_machinery, errors, CUDACompiler.define_pipelines)
    CUDACompiler.define_pipelines = define_pipelines
    analyze_pipelines_once(compiler_machinery)
    compute_lifetimes_on_demand(postproc)
    skip_steps_without_instructions(interpreter, inline_closurecall)
    compile_for_caller(dispatcher, ConfigStack)
    widen_literals(CUDADispatcher)
    pass_tuples_whole(CUDANativeLowering, callconv, types, ArgPacker)
    link_modules_once(CUDACodeLibrary)
    name_options_once(CUDAFlags)
    verify_on_request(nvvm.CompilationUnit)
    replace_where_needed(nvvm)
    refresh_changed_registries(CUDATypingContext)
    refresh_changed_registries(CUDATargetContext)
    find_location_arguments_in_code(base)
    store_constant_arrays_as_bytes(CUDATargetContext, cgutils, types)
    list_variables_directly(ir)
    count_assignments_once(lowering)
    rewrite_blocks_with_variable(ssa)
    infer_functions_without_loops_once(typeinfer.TypeInferer)
    record_warnings_once(typeinfer.ConstraintNetwork)
    look_up_functions_first(CUDATypingContext, extending._Intrinsic)
    omit_texts_of_statements(lowering)
    compute_sizes_once(CUDATargetContext)
    register_counted_range(_numba_cuda_api())


def _import_cuda() -> NumbaModule:
    """`numba.cuda`. NumPy 2.5 dropped `row_stack`, an alias of `vstack`, which numba-cuda 0.30 looks up when it is imported."""
    is_missing = not hasattr(np, "row_stack")
    if is_missing:
        np.row_stack = np.vstack
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5, for a timedelta64 that numba-cuda creates
            from numba import cuda

            if SIMULATED:
                from numba.cuda.simulator.kernelapi import FakeCUDAShared

                FakeCUDAShared.array = _shared_array
            else:
                import numba.cuda.np.arrayobj  # noqa: F401  # it looks `row_stack` up

                _import_without_linear_algebra()
                _change_compiler()
    finally:
        if is_missing:
            del np.row_stack
    return cuda


@cache
def _numba_cuda_api() -> NumbaApi:
    """numba-cuda's modules for intrinsics, which the simulator does not have."""
    from numba.cuda import cgutils, extending, types
    from numba.cuda.core import imputils
    from numba.cuda.typing import templates

    return NumbaApi(extending, types, cgutils, imputils, templates, GLOBAL_MEMORY)


cuda = _import_cuda()


def _compiler_lock() -> AbstractContextManager[None]:
    """Returns the lock that a thread holds while it compiles, and while it composes the functions that are compiled."""
    if SIMULATED:
        return nullcontext()
    from numba.cuda.core.compiler_lock import global_compiler_lock

    return global_compiler_lock


compiler_lock = _compiler_lock()


@cache
def cuda_memory_ops() -> MemoryOps:
    """The operations on a GPU's global memory; in the simulator, whose threads call CPU code, on the CPU's memory."""
    if SIMULATED:
        return cpu_memory_ops()

    @cuda.jit(device=True, forceinline=True)
    def any_in_sector(flag: bool) -> bool:
        lane_pair = np.uint32(3) << np.uint32(cuda.laneid & 30)
        return (cuda.ballot_sync(cuda.activemask(), flag) & lane_pair) != np.uint32(0)

    return make_memory_ops(_numba_cuda_api(), any_in_sector)


@cache
def cuda_array_ops() -> ArrayOps:
    """The operations on arrays and tuples for a GPU; in the simulator, for the CPU."""
    return cpu_array_ops() if SIMULATED else make_array_ops(_numba_cuda_api())


@cache
def wait_for_previous() -> DeviceFunction:
    """`wait_for_previous()`, which every kernel calls first (`dependent_launch`); in the simulator it does nothing."""
    if SIMULATED:
        return lambda: None
    from numba.cuda.core.targetconfig import ConfigStack

    return make_wait_for_previous(_numba_cuda_api(), lambda: ConfigStack.top_or_none().compute_capability)


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
    add_kernel(kernel)
    bounds = None if threads is None else (threads, min_blocks_per_sm)
    return cuda.compile(kernel, signature, cc=cc, device=False, abi="numba", output=output, launch_bounds=bounds)[0]


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
    code, _ = cuda.compile(function, signature, cc=cc, device=True, abi="c", abi_info={"abi_name": name}, output="ltoir")
    return bytes(code)


def cuda_extern_call(symbol: str, returns: Sequence[DType]) -> DeviceFunction:
    """An intrinsic for a GPU that calls a C function.

    Args:
        symbol: the name of the function.
        returns: the NumPy dtypes of its results.
    """
    from numba.cuda.np.numpy_support import from_dtype

    return extern_c_call(_numba_cuda_api(), symbol, [from_dtype(np.dtype(dtype)) for dtype in returns])
