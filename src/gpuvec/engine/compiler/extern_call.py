"""Calls of functions in C++ from composed code."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from gpuvec.engine.compiler.llvm import FLOAT, INT8, INT32
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def extern_c_call(numba: NumbaApi, symbol: str, returns: Sequence[NumbaType]) -> DeviceFunction:
    """`call(groups)`, an intrinsic that calls a C function.

    Each number in the tuple `groups` is an argument. Each tuple in it is an argument too, the address of a structure of its
    members; an array in such a tuple is the address of its first element.

    Args:
        numba: the modules that intrinsics are declared with.
        symbol: the name of the C function.
        returns: types of the results. They are members of a structure, whose address is the function's last argument, and
            `call` returns them as a tuple.
    """
    types, cgutils = numba.types, numba.cgutils
    members = {types.float32: FLOAT, types.int32: INT32, types.uint32: INT32, types.boolean: INT8}

    @numba.intrinsic
    def call(typingctx: TypingContext, groups: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            values = zip(sig.args[0].types, cgutils.unpack_tuple(builder, args[0]), strict=True)
            arguments = [_argument(numba, context, builder, kind, value) for kind, value in values]
            results = _allocate_struct(numba, builder, [members[kind] for kind in returns])
            arguments += [builder.bitcast(results, INT8.as_pointer())] if returns else []
            prototype = ir.FunctionType(ir.VoidType(), [value.type for value in arguments])
            builder.call(cgutils.get_or_insert_function(builder.module, prototype, symbol), arguments)
            loaded = []
            for k, kind in enumerate(returns):
                value = builder.load(builder.gep(results, [INT32(0), INT32(k)]))
                loaded.append(builder.icmp_unsigned("!=", value, INT8(0)) if kind == types.boolean else value)
            return context.make_tuple(builder, sig.return_type, loaded)

        return types.Tuple(returns)(groups), codegen

    return call


def _allocate_struct(numba: NumbaApi, builder: ir.IRBuilder, members: Sequence[ir.Type]) -> ir.Value:
    """Memory on the stack for a structure; one without members has one byte."""
    return numba.cgutils.alloca_once(builder, ir.LiteralStructType(members or [INT8]))


def _argument(numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, kind: NumbaType, value: ir.Value) -> ir.Value:
    """What the C function takes for `value` of Numba type `kind`: a tuple's address on the stack, or a number itself."""
    if not isinstance(kind, numba.types.BaseTuple):
        return value
    elements = zip(kind.types, numba.cgutils.unpack_tuple(builder, value), strict=True)
    members = [_member(numba, context, builder, element_type, element) for element_type, element in elements]
    struct = _allocate_struct(numba, builder, [member.type for member in members])
    for k, member in enumerate(members):
        builder.store(member, builder.gep(struct, [INT32(0), INT32(k)]))
    return builder.bitcast(struct, INT8.as_pointer())


def _member(numba: NumbaApi, context: TargetContext, builder: ir.IRBuilder, kind: NumbaType, value: ir.Value) -> ir.Value:
    """What a structure holds of `value`: an array's address, a bool as a byte, or a number itself."""
    if isinstance(kind, numba.types.Array):
        return builder.bitcast(context.make_array(kind)(context, builder, value).data, INT8.as_pointer())
    return builder.zext(value, INT8) if kind == numba.types.boolean and value.type.width < 8 else value
