"""Calls of C functions from kernel code."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from gpuvec.engine.compiler.llvm import FLOAT, INT8, INT32, Args, Builder
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.static_arrays import element_address, is_static
from gpuvec.engine.compiler.types import DeviceFunction, NumbaType, Signature, TargetContext


def extern_c_call(numba: NumbaApi, symbol: str, returns: Sequence[NumbaType]) -> DeviceFunction:
    """Declares `call(groups)`, an intrinsic that calls a C function.

    Each number in the tuple `groups` is an argument of the C function. For each tuple in `groups` the argument is the address
    of a structure with the tuple's elements; an array in such a tuple is passed as the address of its first element.

    Args:
        numba: the modules that intrinsics are declared with.
        symbol: the name of the C function.
        returns: types of the results. The C function writes them to the members of a structure, whose address is its last
            argument, and `call` returns them as a tuple.
    """
    types, cgutils = numba.types, numba.cgutils
    member_types = {types.float32: FLOAT, types.int32: INT32, types.uint32: INT32, types.boolean: INT8}

    def codegen(_: NumbaApi, context: TargetContext, builder: Builder, sig: Signature, args: Args) -> ir.Value:
        typed_groups = zip(sig.args[0].types, cgutils.unpack_tuple(builder, args[0]), strict=True)
        arguments = [_argument(numba, context, builder, group_type, group) for group_type, group in typed_groups]
        results = _allocate_struct(numba, builder, [member_types[result_type] for result_type in returns])
        arguments += [builder.bitcast(results, INT8.as_pointer())] if returns else []
        prototype = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        builder.call(cgutils.get_or_insert_function(builder.module, prototype, symbol), arguments)
        result_values = []
        for k, result_type in enumerate(returns):
            value = builder.load(builder.gep(results, [INT32(0), INT32(k)]))
            result_values.append(builder.icmp_unsigned("!=", value, INT8(0)) if result_type == types.boolean else value)
        return context.make_tuple(builder, sig.return_type, result_values)

    return numba.intrinsic("call", lambda _, groups: types.Tuple(returns)(groups), codegen)


def _allocate_struct(numba: NumbaApi, builder: Builder, member_types: Sequence[ir.Type]) -> ir.Value:
    """Returns the address of a structure on the stack. A structure without members has one byte."""
    return numba.cgutils.alloca_once(builder, ir.LiteralStructType(member_types or [INT8]))


def _argument(numba: NumbaApi, context: TargetContext, builder: Builder, group_type: NumbaType, group: ir.Value) -> ir.Value:
    """Returns the C function's argument for a `group` of Numba type `group_type`.

    The argument is a number itself, or the address of a structure on the stack with the elements of a tuple.
    """
    if not isinstance(group_type, numba.types.BaseTuple):
        return group
    elements = zip(group_type.types, numba.cgutils.unpack_tuple(builder, group), strict=True)
    values = [_struct_member(numba, context, builder, element_type, element) for element_type, element in elements]
    struct = _allocate_struct(numba, builder, [value.type for value in values])
    for k, value in enumerate(values):
        builder.store(value, builder.gep(struct, [INT32(0), INT32(k)]))
    return builder.bitcast(struct, INT8.as_pointer())


def _struct_member(
    numba: NumbaApi, context: TargetContext, builder: Builder, value_type: NumbaType, value: ir.Value
) -> ir.Value:
    """Returns what a structure contains for `value`: the address of an array, a bool as a byte, or a number itself."""
    if is_static(value_type) or isinstance(value_type, numba.types.Array):
        return builder.bitcast(element_address(context, builder, value_type, value), INT8.as_pointer())
    return builder.zext(value, INT8) if value_type == numba.types.boolean and value.type.width < 8 else value
