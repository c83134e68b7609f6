"""A target of numba-cuda for the functions and kernels of this package, by subclasses; numba-cuda's own target stays as it is.

It differs in four ways. A function that another one calls is compiled for the compute capability of its caller: numba-cuda asks
the driver for that of the current device, which may be absent. Signatures of operators are inferred once. Each LLVM module is
passed to NVVM once, not once for each chain of calls that leads to its function. Large constant arrays are in global memory.
"""

from __future__ import annotations

from functools import cached_property
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from llvmlite import ir
from numba.core.dispatcher import Dispatcher
from numba.cuda import cgutils, dispatcher, extending, types, utils
from numba.cuda.codegen import CUDACodeLibrary, JITCUDACodegen
from numba.cuda.compiler import compile_extra, kernel_fixup
from numba.cuda.core import imputils
from numba.cuda.core.callconv import CUDACABICallConv, CUDACallConv
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.sigutils import normalize_signature
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import CUDATarget, cuda_target
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.flags import CUDAFlags
from numba.cuda.target import CUDATargetContext, CUDATypingContext
from numba.cuda.typing import templates
from numpy.typing import NDArray

from gpuvec.engine.compiler.counted_range import register_counted_range
from gpuvec.engine.compiler.function_objects import function_object_class, is_function_object
from gpuvec.engine.compiler.functions import is_inline, without_literals
from gpuvec.engine.compiler.numba_api import GLOBAL_MEMORY, NumbaApi
from gpuvec.engine.compiler.operator_signatures import infer_operators_once
from gpuvec.engine.compiler.types import NumbaType, Signature

# The largest table in constant memory, of which a kernel has 64 KiB. It is fast where all threads of a warp read the same
# element, which is rare in a large table.
MAX_CONSTANT_BYTES = 8 << 10
CONSTANT_MEMORY = 4  # LLVM's number of the address space
NUMBA_CUDA = NumbaApi(extending, types, cgutils, imputils, templates, GLOBAL_MEMORY)

register_counted_range(NUMBA_CUDA)


class GpuLibrary(CUDACodeLibrary):  # type: ignore[misc]  # numba-cuda has no annotations
    """The LLVM module of a function, with the libraries of the functions that it calls."""

    @property
    def llvm_strs(self) -> list[str]:
        """The texts of this module and of those of all functions that it calls, each once."""
        unique_libraries: dict[Any, None] = {}
        pending = list(self._linking_libraries)  # `modules` would repeat a library for each chain of calls to it.
        while pending:
            library = pending.pop()
            if library not in unique_libraries:
                unique_libraries[library] = None
                pending += getattr(library, "_linking_libraries", ())  # Libraries of external code have none.
        # Public is the list of all modules alone.
        return [str(library._module) for library in (self, *unique_libraries) if hasattr(library, "_module")]


class GpuCodegen(JITCUDACodegen):  # type: ignore[misc]  # numba-cuda has no annotations
    """numba-cuda's code generation with libraries of this target."""

    _library_class = GpuLibrary  # what `create_library` returns


class GpuTypingContext(CUDATypingContext):  # type: ignore[misc]  # numba-cuda has no annotations
    """numba-cuda's typing context, with the same tables of functions and types."""

    # The one place where numba-cuda looks up the type of an operator.
    _lookup_global = infer_operators_once(NUMBA_CUDA, CUDATypingContext._lookup_global)

    def __init__(self, base: CUDATypingContext) -> None:
        self.__dict__ = base.__dict__  # what one of them registers, both have

    def resolve_value_type(self, value: Any) -> NumbaType:
        """Returns the Numba type of a Python value; that of a function compiled for any target is one of this target."""
        if is_function_object(value):
            return function_object_class(NUMBA_CUDA)(value)
        return super().resolve_value_type(gpu_dispatcher(value) if isinstance(value, Dispatcher | CUDADispatcher) else value)


class GpuTargetContext(CUDATargetContext):  # type: ignore[misc]  # numba-cuda has no annotations
    """numba-cuda's context that generates code, with the same tables of implementations."""

    def __init__(self, base: CUDATargetContext, typing_context: GpuTypingContext) -> None:
        self.__dict__.update(base.__dict__)
        self.typing_context = typing_context
        self._internal_codegen = GpuCodegen("gpuvec")  # what `codegen` returns

    def make_constant_array(self, builder: ir.IRBuilder, array_type: NumbaType, array: NDArray[Any]) -> ir.Value:
        """Returns an array as a string of bytes, one of more than `MAX_CONSTANT_BYTES` in the global memory of the kernel.

        numba-cuda stores all arrays in constant memory, and makes an LLVM constant of each byte.
        """
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            array = np.ascontiguousarray(array)
        is_large = array.nbytes > MAX_CONSTANT_BYTES
        name, space = ("large_table", GLOBAL_MEMORY) if is_large else ("_cudapy_cmem", CONSTANT_MEMORY)
        content = cgutils.create_constant_array(ir.IntType(8), bytearray(array.tobytes(order="A")))
        table = cgutils.add_global_variable(builder.module, content.type, name, addrspace=space)
        table.linkage, table.global_constant, table.initializer = "internal", True, content
        table.align = 1 << (array.itemsize - 1).bit_length()
        result = self.make_array(array_type)(self, builder)
        address = builder.addrspacecast(table, ir.PointerType(ir.IntType(8)), "generic")
        shape, strides = ([self.get_constant(types.intp, n) for n in numbers] for numbers in (array.shape, array.strides))
        data = builder.bitcast(address, result.data.type)
        itemsize = self.get_constant(types.intp, array.itemsize)
        self.populate_array(result, data=data, shape=shape, strides=strides, itemsize=itemsize, parent=None, meminfo=None)
        return result._getvalue()  # as in the examples of Numba's documentation for extensions


class GpuTarget(CUDATarget):  # type: ignore[misc]  # numba-cuda has no annotations
    """The description of the target that dispatchers use."""

    @cached_property
    def typing_context(self) -> GpuTypingContext:
        """The context that infers types."""
        return GpuTypingContext(cuda_target.typing_context)

    @cached_property
    def target_context(self) -> GpuTargetContext:
        """The context that generates code."""
        return GpuTargetContext(cuda_target.target_context, self.typing_context)


class GpuDispatcher(CUDADispatcher):  # type: ignore[misc]  # numba-cuda has no annotations
    """A device function with its compiled versions by the types of their arguments."""

    targetdescr = GpuTarget("cuda")

    def get_call_template(self, args: tuple[NumbaType, ...], kws: dict[str, NumbaType]) -> Any:
        """Compiles an inlined function once for all literal arguments of a type, as `inline_function` does on a CPU."""
        return super().get_call_template(*(without_literals(args, kws) if is_inline(self.py_func) else (args, kws)))

    def compile_device(self, args: tuple[NumbaType, ...], return_type: NumbaType | None = None) -> Any:
        """Compiles the function for arguments of these types, with the compute capability of its caller."""
        if args not in self.overloads:
            options = CUDAFlags()
            options.inline = self.targetoptions.get("inline", "never")
            if self.targetoptions.get("forceinline"):
                options.forceinline = True
            if self.targetoptions.get("fastmath"):
                options.fastmath = True
            options.compute_capability = ConfigStack.top_or_none().compute_capability
            compiled = _compile(self.py_func, args, return_type, options, CUDACallConv)
            self.overloads[args] = compiled
            self.targetctx.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        return self.overloads[args]


_gpu_dispatchers: WeakKeyDictionary[Any, GpuDispatcher] = WeakKeyDictionary()


def gpu_dispatcher(function: Any) -> GpuDispatcher:
    """Returns the function of this target for one that Numba or numba-cuda compiles."""
    if isinstance(function, GpuDispatcher):
        return function
    if function not in _gpu_dispatchers:
        _gpu_dispatchers[function] = GpuDispatcher(function.py_func, function.targetoptions | {"device": True})
    return _gpu_dispatchers[function]


def _compile(
    function: Any, args: tuple[NumbaType, ...], return_type: NumbaType | None, options: CUDAFlags, convention: Any, **abi: str
) -> Any:
    """Returns numba-cuda's result of the compilation of a function to LLVM IR."""
    options.no_compile = options.no_cpython_wrapper = options.no_cfunc_wrapper = True
    options.error_model = "numpy"
    target = GpuDispatcher.targetdescr
    contexts = {"typingctx": target.typing_context, "targetctx": target.target_context}
    with utils.numba_target_override():
        compiled = compile_extra(
            **contexts, func=function, args=args, return_type=return_type, flags=options, locals={},
            call_conv=convention(target.target_context), abi_info=abi,
        )  # fmt: skip
    compiled.library.finalize()
    return compiled


@global_compiler_lock
def compile_for_gpu(
    function: Any,
    signature: Signature,
    cc: tuple[int, int],
    output: str,
    c_name: str | None = None,
    launch_bounds: tuple[int, int] | None = None,
) -> Any:
    """Compiles a kernel, or a device function with C's calling convention.

    Args:
        function: a Python function.
        signature: the Numba types of its arguments and of its result.
        cc: the compute capability.
        output: "ltoir" for bytes, "ptx" for text.
        c_name: the symbol of a device function; None for a kernel.
        launch_bounds: of a kernel, the block size and how many blocks must have enough registers on one multiprocessor.
    """
    options, (args, return_type) = CUDAFlags(), normalize_signature(signature)
    options.inline, options.compute_capability, options.lto = "never", cc, output == "ltoir"
    options.nvvm_options = {"fastmath": False, "opt": 3} | ({"gen-lto": None} if options.lto else {})
    abi = {} if c_name is None else {"abi_name": c_name}
    # numba-cuda's own dispatcher compiles built-in functions that are written in Python, and asks the driver for the current
    # device. No interface of numba-cuda names the one of the kernel that calls them, so its name for that question is replaced
    # here. Other threads get the old answer.
    current_device = dispatcher.get_current_device

    def device_of_caller() -> Any:
        options = ConfigStack.top_or_none()  # of this thread
        return current_device() if options is None else SimpleNamespace(compute_capability=options.compute_capability)

    dispatcher.get_current_device = device_of_caller
    try:
        compiled = _compile(function, args, return_type, options, CUDACallConv if c_name is None else CUDACABICallConv, **abi)
    finally:
        dispatcher.get_current_device = current_device
    library = compiled.library
    if c_name is None:
        kernel = library.get_function(compiled.fndesc.llvm_func_name)
        kernel_fixup(kernel, False)
        nvvm.set_launch_bounds(kernel, launch_bounds)
    return library.get_ltoir(cc=cc) if options.lto else library.get_asm_str(cc=cc)
