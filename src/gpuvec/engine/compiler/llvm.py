"""LLVM instructions that several intrinsics emit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from llvmlite import ir

Builder: TypeAlias = ir.IRBuilder
Args: TypeAlias = Sequence[ir.Value]  # of an intrinsic

INT8, INT16, INT32, INT64, FLOAT = *map(ir.IntType, (8, 16, 32, 64)), ir.FloatType()


def to_int64(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Returns the integer `value`, sign-extended to 64 bits; `builder` emits the instruction."""
    return builder.sext(value, INT64) if value.type.width < 64 else value


def to_int32(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Returns the integer `value`, truncated to 32 bits; `builder` emits the instruction."""
    return builder.trunc(value, INT32) if value.type.width > 32 else value


def element_pointer(
    builder: ir.IRBuilder, address: ir.Value, index: ir.Value, element_type: ir.Type, address_space: int
) -> ir.Value:
    """Returns a pointer to element `index` of the array that begins at an integer address.

    Args:
        builder: emits the instructions.
        address: an int64.
        index: an integer, counted in elements.
        element_type: the type of the elements.
        address_space: the number that LLVM gives the array's address space.
    """
    return builder.gep(builder.inttoptr(address, element_type.as_pointer(address_space)), [to_int64(builder, index)])


def store_evict_first(builder: ir.IRBuilder, pointer: ir.Value, values: Sequence[ir.Value]) -> None:
    """Stores one to four `values` of equal type in consecutive elements, marked for early eviction from the cache.

    The instruction is PTX's `st.global.cs`, which LLVM cannot express, so `builder` emits it as inline assembly.

    Args:
        builder: emits the instructions.
        pointer: the address of the first element.
        values: what is stored, of type float, int32, int16 or int8.
    """
    element_type = values[0].type
    types = {"float": ("f32", "f"), "i32": ("b32", "r"), "i16": ("u16", "h"), "i8": ("u8", "r")}
    suffix, constraint = types[str(element_type)]
    # PTX has no registers of 8 bits.
    if element_type == INT8:
        values = [builder.zext(value, INT32) for value in values]
    names = ", ".join(f"${k + 1}" for k in range(len(values)))
    vector, names = (f".v{len(values)}", f"{{{names}}}") if len(values) > 1 else ("", names)
    function = ir.FunctionType(ir.VoidType(), [pointer.type, *(value.type for value in values)])
    code = f"st.global.cs{vector}.{suffix} [$0], {names};"
    operands = ",".join(["l", *[constraint] * len(values)])
    builder.call(ir.InlineAsm(function, code, operands, side_effect=True), [pointer, *values])


def load_evict_first(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """Returns the value at `pointer`, loaded with PTX's `ld.global.cs`, which marks it for early eviction from the cache.

    `builder` emits the load as inline assembly with side effects, so that the compiler moves it across no barrier.
    """
    element_type = pointer.type.pointee
    suffix, constraint, register_type = {
        "float": ("f32", "f", element_type), "double": ("f64", "d", element_type),
        "i8": ("u8", "r", INT32), "i32": ("u32", "r", element_type), "i64": ("u64", "l", element_type),
    }[str(element_type)]  # fmt: skip
    function = ir.FunctionType(register_type, [pointer.type])
    code = ir.InlineAsm(function, f"ld.global.cs.{suffix} $0, [$1];", f"={constraint},l", side_effect=True)
    value = builder.call(code, [pointer])
    # PTX has no registers of 8 bits.
    return value if register_type is element_type else builder.trunc(value, element_type)
