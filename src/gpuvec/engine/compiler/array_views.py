"""Arrays in kernel code that refer to existing memory: at an address, inside another array, or with bounded elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT64, element_pointer, to_int64
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.static_arrays import element_address, is_static, static_array_class, to_numba_array
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext

Shape = tuple[int, ...]


def array_element_pointer(
    context: TargetContext, builder: ir.IRBuilder, array_type: NumbaType, array: ir.Value, index: ir.Value
) -> ir.Value:
    """Returns a pointer to an element of an array, which are counted in C order.

    Args:
        context: generates code for Numba's types.
        builder: emits the instructions.
        array_type: the Numba type of `array`.
        array: the array, as Numba passes it.
        index: an integer.
    """
    return builder.gep(element_address(context, builder, array_type, array), [to_int64(builder, index)])


def make_view(numba: NumbaApi) -> Callable[[Shape], DeviceFunction]:
    """Declares `ArrayOps.view` to `numba`."""
    static_array = static_array_class(numba)

    @cache
    def view(shape: Shape) -> DeviceFunction:
        @numba.intrinsic
        def view_of_shape(typingctx: TypingContext, address: NumbaType, index: NumbaType, dtype: NumbaType) -> Intrinsic:
            return static_array(dtype.dtype, shape)(address, index, dtype), lambda context, builder, sig, args: _emit_view(
                numba, prod(shape), context, builder, sig, args
            )

        return view_of_shape

    return view


def _emit_view(
    numba: NumbaApi, size: int, context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]
) -> ir.Value:
    """Emits the pointer of a view of `size` elements; the arguments are an address, the number of the view, and a dtype."""
    element_type = context.get_data_type(sig.args[2].dtype)
    first = builder.mul(to_int64(builder, args[1]), INT64(size))
    data = element_pointer(builder, args[0], first, element_type, numba.address_space)
    return builder.addrspacecast(data, element_type.as_pointer()) if numba.is_gpu else data


def make_subarray(numba: NumbaApi) -> Callable[[Shape], DeviceFunction]:
    """Declares `ArrayOps.subarray` to `numba`."""
    static_array = static_array_class(numba)

    @cache
    def subarray(shape: Shape) -> DeviceFunction:
        @numba.intrinsic
        def subarray_of_shape(typingctx: TypingContext, array: NumbaType, start: NumbaType) -> Intrinsic:
            return static_array(array.dtype, shape, mutable=array.mutable)(array, start), _emit_subarray

        return subarray_of_shape

    return subarray


def _emit_subarray(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
    """Emits the pointer of a part of an array; the arguments are the array and the number of its first element."""
    return array_element_pointer(context, builder, sig.args[0], args[0], args[1])


def make_numba_array(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.numba_array` to `numba`."""

    @numba.intrinsic
    def numba_array(typingctx: TypingContext, array: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            return to_numba_array(context, builder, array, args[0]) if is_static(array) else args[0]

        return (array.numba_array if is_static(array) else array)(array), codegen

    return numba_array


def make_assume_below(numba: NumbaApi) -> Callable[[int], DeviceFunction]:
    """Declares `ArrayOps.assume_below` to `numba`."""
    static_array = static_array_class(numba)

    @cache
    def assume_below(bound: int) -> DeviceFunction:
        @numba.intrinsic
        def with_bound(typingctx: TypingContext, array: NumbaType) -> Intrinsic:
            return static_array(array.dtype, array.shape, bound)(array), lambda context, builder, sig, args: args[0]

        return with_bound

    return assume_below
