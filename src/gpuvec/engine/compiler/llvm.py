"""LLVM instructions that several intrinsics emit."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

INT8, INT32, INT64, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def to_int64(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The integer `value`, sign-extended to 64 bits by `builder`."""
    return builder.sext(value, INT64) if value.type.width < 64 else value


def to_int32(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """The integer `value`, truncated to 32 bits by `builder`."""
    return builder.trunc(value, INT32) if value.type.width > 32 else value


def element_pointer(
    builder: ir.IRBuilder, address: ir.Value, index: ir.Value, element: ir.Type, address_space: int
) -> ir.Value:
    """A pointer to element `index` of the array that begins at an integer address.

    Args:
        builder: emits the instructions.
        address: an int64.
        index: an integer, counted in elements.
        element: the type of the elements.
        address_space: LLVM's number of the array's address space.
    """
    return builder.gep(builder.inttoptr(address, element.as_pointer(address_space)), [to_int64(builder, index)])


def store_evict_first(builder: ir.IRBuilder, pointer: ir.Value, values: Sequence[ir.Value]) -> None:
    """Stores one to four `values` of equal type side by side at `pointer`, marked for early eviction from the cache.

    The instruction is PTX's `st.global.cs`, which LLVM cannot express; `builder` emits it as inline assembly.
    """
    element = values[0].type
    kind, letter = {"float": ("f32", "f"), "i32": ("b32", "r"), "i8": ("u8", "r")}[str(element)]
    if element == INT8:  # PTX keeps bytes in wider registers
        values = [builder.zext(value, INT32) for value in values]
    names = ", ".join(f"${k + 1}" for k in range(len(values)))
    vector, names = (f".v{len(values)}", f"{{{names}}}") if len(values) > 1 else ("", names)
    function = ir.FunctionType(ir.VoidType(), [pointer.type, *(value.type for value in values)])
    code, operands = f"st.global.cs{vector}.{kind} [$0], {names};", ",".join(["l", *[letter] * len(values)])
    builder.call(ir.InlineAsm(function, code, operands, side_effect=True), [pointer, *values])


def load_evict_first(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """The value at `pointer`, loaded with PTX's `ld.global.cs`, which marks it for early eviction from the cache.

    `builder` emits it as inline assembly with side effects, so that the compiler moves it across no barrier.
    """
    element = pointer.type.pointee
    kind, letter, register = {
        "float": ("f32", "f", element), "double": ("f64", "d", element),
        "i8": ("u8", "r", INT32), "i32": ("u32", "r", element), "i64": ("u64", "l", element),
    }[str(element)]  # fmt: skip
    function = ir.FunctionType(register, [pointer.type])
    code = ir.InlineAsm(function, f"ld.global.cs.{kind} $0, [$1];", f"={letter},l", side_effect=True)
    value = builder.call(code, [pointer])
    return value if register is element else builder.trunc(value, element)  # PTX keeps bytes in wider registers
