"""How composed code calls functions in C++: made for either Numba, as `memory` is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir


def extern_c_call(extending: Any, types: Any, cgutils: Any, symbol: str, gives: Sequence[Any]) -> Any:
    """`call(groups)`, an intrinsic that calls the C function `symbol`.

    Of `groups`, a tuple, each number is an argument, and each tuple one that is the address of a structure of its members; an
    array is the address of its first element. Results, of the types `gives`, are members of a last structure, which the
    function writes, and come as a tuple.
    """
    byte, number = ir.IntType(8), ir.IntType(32)
    held = {types.float32: ir.FloatType(), types.int32: number, types.uint32: number, types.boolean: byte}

    @extending.intrinsic
    def call(typingctx: Any, groups: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            def structure(members: Sequence[Any]) -> Any:
                return cgutils.alloca_once(builder, ir.LiteralStructType(members or [byte]))

            def stored(kind: Any, value: Any) -> Any:
                if isinstance(kind, types.Array):
                    return builder.bitcast(context.make_array(kind)(context, builder, value).data, byte.as_pointer())
                return builder.zext(value, byte) if kind == types.boolean and value.type.width < 8 else value

            given = []
            for kind, value in zip(sig.args[0].types, cgutils.unpack_tuple(builder, args[0]), strict=True):
                if not isinstance(kind, types.BaseTuple):
                    given.append(value)
                    continue
                parts = [stored(k, v) for k, v in zip(kind.types, cgutils.unpack_tuple(builder, value), strict=True)]
                place = structure([part.type for part in parts])
                for k, part in enumerate(parts):
                    builder.store(part, builder.gep(place, [number(0), number(k)]))
                given.append(builder.bitcast(place, byte.as_pointer()))
            out = structure([held[kind] for kind in gives])
            given += [builder.bitcast(out, byte.as_pointer())] if gives else []
            made = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            builder.call(cgutils.get_or_insert_function(builder.module, made, symbol), given)
            found = []
            for k, kind in enumerate(gives):
                value = builder.load(builder.gep(out, [number(0), number(k)]))
                found.append(builder.icmp_unsigned("!=", value, byte(0)) if kind == types.boolean else value)
            return context.make_tuple(builder, sig.return_type, found)

        return types.Tuple(gives)(groups), codegen

    return call
