"""Arrays that kernels read as constants: tables of parameters, in constant memory or in global memory of the kernel.

`numba_cuda`, which alone imports numba-cuda, applies this to its classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from gpuvec.engine.compiler.numba_api import GLOBAL_MEMORY
from gpuvec.engine.compiler.types import NumbaModule, NumbaType

# The largest table in constant memory, of which a kernel has 64 KiB. It is fast where all threads of a warp read the same
# element, which is rare in a large table.
MAX_CONSTANT_BYTES = 8 << 10
CONSTANT_MEMORY = 4  # LLVM's number of the address space


def store_constant_arrays_as_bytes(context_class: type, cgutils: NumbaModule, types: NumbaModule) -> None:
    """Compiles constant arrays as strings of bytes, those of more than `MAX_CONSTANT_BYTES` in global memory.

    The global memory of a kernel is loaded with the kernel. numba-cuda stores all arrays in constant memory, and makes an LLVM
    constant of each byte.

    Args:
        context_class: numba-cuda's class that translates constants to LLVM.
        cgutils: numba-cuda's module of functions that generate code.
        types: numba-cuda's module of types.
    """

    def make_constant_array(self: Any, builder: ir.IRBuilder, array_type: NumbaType, array: NDArray[Any]) -> ir.Value:
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
        return result._getvalue()

    context_class.make_constant_array = make_constant_array  # type: ignore[attr-defined]  # numba-cuda has no annotations
