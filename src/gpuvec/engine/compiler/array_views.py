"""Arrays in kernel code that refer to existing memory: at an address, inside another array, or with bounded elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT64, element_pointer, to_int64
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def array_element_pointer(
    context: TargetContext, builder: ir.IRBuilder, array_type: NumbaType, array: ir.Value, index: ir.Value
) -> ir.Value:
    """Returns a pointer to an element of a one-dimensional array.

    Args:
        context: generates code for Numba's types.
        builder: emits the instructions.
        array_type: the Numba type of `array`.
        array: the array, as Numba passes it.
        index: an integer.
    """
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [to_int64(builder, index)])


def _make_array(
    numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, array_type: NumbaType, data: ir.Value, shape: ir.Value
) -> ir.Value:
    """Returns a C-contiguous array of Numba type `array_type` and of `shape`, a tuple, whose first element is at `data`."""
    itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    dims = [to_int64(builder, d) for d in numba.cgutils.unpack_tuple(builder, shape)]
    strides: list[ir.Value] = [INT64(itemsize)]
    for d in reversed(dims[1:]):
        strides.insert(0, builder.mul(strides[0], d))
    array = context.make_array(array_type)(context, builder)
    members = {"data": data, "shape": dims, "strides": strides, "itemsize": INT64(itemsize), "meminfo": None}
    context.populate_array(array, **members)
    return array._getvalue()


def make_view(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.view` to `numba`."""

    @numba.intrinsic
    def view(typingctx: TypingContext, address: NumbaType, index: NumbaType, shape: NumbaType, dtype: NumbaType) -> Intrinsic:
        array_type = numba.types.Array(dtype.dtype, len(shape), "C")

        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            element_type, first = context.get_data_type(dtype.dtype), to_int64(builder, args[1])
            for d in numba.cgutils.unpack_tuple(builder, args[2]):
                first = builder.mul(first, to_int64(builder, d))
            data = element_pointer(builder, args[0], first, element_type, numba.address_space)
            if numba.is_gpu:
                data = builder.addrspacecast(data, element_type.as_pointer())
            return _make_array(numba, context, builder, array_type, data, args[2])

        return array_type(address, index, shape, dtype), codegen

    return view


def make_subarray(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.subarray` to `numba`."""

    @numba.intrinsic
    def subarray(typingctx: TypingContext, array: NumbaType, start: NumbaType, shape: NumbaType) -> Intrinsic:
        array_type = numba.types.Array(array.dtype, len(shape), "C")

        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            data = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
            return _make_array(numba, context, builder, array_type, data, args[2])

        return array_type(array, start, shape), codegen

    return subarray


def _register_bounded_array(numba: NumbaApi) -> NumbaType:
    """Returns the class of arrays of integers in [0, bound), whose elements are loaded with LLVM's `range` metadata."""
    extending, types = numba.extending, numba.types

    class BoundedArray(types.Array):  # type: ignore[misc, name-defined]  # Numba has no annotations
        def __init__(self, dtype: NumbaType, bound: int) -> None:
            self.bound = bound
            super().__init__(dtype, 1, "C", name=f"assume_below({bound}, {dtype})")

        # Numba's types are equal if their keys are, and the key of an array does not contain a bound.
        @property
        def key(self) -> tuple[object, int]:
            return super().key, self.bound

    # numba-cuda has the data model of arrays in another module.
    models = getattr(extending, "core_models", extending.models)
    extending.register_model(BoundedArray)(models.ArrayModel)

    @extending.lower_builtin(operator.getitem, BoundedArray, types.Integer)
    def getitem(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        array_type, index_type = sig.args
        unbounded_sig = sig.replace(args=(types.Array(array_type.dtype, 1, "C"), index_type))
        value = context.get_function(operator.getitem, unbounded_sig)(builder, args)
        value.set_metadata("range", builder.module.add_metadata([value.type(0), value.type(array_type.bound)]))
        return value

    return BoundedArray


def make_assume_below(numba: NumbaApi) -> Callable[[int], DeviceFunction]:
    """Declares `ArrayOps.assume_below` to `numba`."""
    bounded_array = _register_bounded_array(numba)

    def assume_below(bound: int) -> DeviceFunction:
        @numba.intrinsic
        def with_bound(typingctx: TypingContext, array: NumbaType) -> Intrinsic:
            return bounded_array(array.dtype, bound)(array), lambda context, builder, sig, args: args[0]

        return with_bound

    return assume_below
