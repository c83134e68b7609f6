"""How composed code reads and writes its buffers: by address and element index, on the CPU and on a GPU.

A batch of plain addresses is cheap to hand to a kernel (an array is 7 to 9 kernel arguments, and costs a reference count
at each use on a CPU), and lets a row be read and written with 16-byte accesses. Numba and numba-cuda each bring their own
extension interface, with the same shape: `make_memory_ops` makes the operations for either.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir


class MemoryOps(NamedTuple):
    """The operations on buffers that composed code may use. An index counts elements, that of a row counts rows."""

    # load(buffer, index, dtype) -> the element there
    load: Any
    # store(buffer, index, value, dtype): writes the element there
    store: Any
    # load_row(buffer, index, like) -> tuple of len(like) elements of like's type
    load_row: Any
    # store_row(buffer, index, values): stores a tuple of equal types
    store_row: Any
    # store_streaming(buffer, index, value, dtype): a store that leaves a GPU's cache first, as no kernel reads it
    store_streaming: Any
    # store_row_streaming(buffer, index, values): such a store of a row
    store_row_streaming: Any
    # atomic_min(buffer, index, value): the uint64 there becomes the smaller of the two
    atomic_min: Any
    # atomic_add(buffer, index, by): adds to the uint32 there; a GPU does not wait for the old value
    atomic_add: Any
    # any_in_sector(flag): whether flag holds for this env or for the one whose 16-byte row shares a 32-byte sector with its row
    any_in_sector: Any
    # load_column(buffer, start, stride, like) -> as many float32 elements as `row_of` has, `stride` apart
    load_column: Any
    # store_column(buffer, start, stride, values): stores a tuple of float32, `stride` elements apart
    store_column: Any
    # to_floats(values, like) -> the first of these numbers of any types as float32, as many as `row_of` has
    to_floats: Any
    # load_streaming(buffer, index, dtype): a load that leaves a GPU's cache first, as it is read once
    load_streaming: Any


def row_of(dtype: Any, width: int) -> Any:
    """A tuple whose type tells `load_row` what to read."""
    return (dtype(0),) * width


def evicted_first(builder: Any, at: Any, values: list[Any]) -> None:
    """Stores `values` side by side, marked for the cache to let go of: `st.global.cs`, which LLVM has no word for."""
    element = values[0].type
    kind, letter = {"float": ("f32", "f"), "i32": ("b32", "r"), "i8": ("u8", "r")}[str(element)]
    if str(element) == "i8":  # PTX holds bytes in wider registers
        values = [builder.zext(value, ir.IntType(32)) for value in values]
    names = ", ".join(f"${k + 1}" for k in range(len(values)))
    vector, names = (f".v{len(values)}", f"{{{names}}}") if len(values) > 1 else ("", names)
    function = ir.FunctionType(ir.VoidType(), [at.type, *(value.type for value in values)])
    code, operands = f"st.global.cs{vector}.{kind} [$0], {names};", ",".join(["l", *[letter] * len(values)])
    builder.call(ir.InlineAsm(function, code, operands, side_effect=True), [at, *values])


def fetched_once(builder: Any, at: Any) -> Any:
    """Loads what the cache may let go of: `ld.global.cs`. The compiler moves it across no barrier."""
    element = at.type.pointee
    kind, letter, held = {
        "float": ("f32", "f", element), "double": ("f64", "d", element),
        "i8": ("u8", "r", ir.IntType(32)), "i32": ("u32", "r", element), "i64": ("u64", "l", element),
    }[str(element)]  # fmt: skip
    function = ir.FunctionType(held, [at.type])
    value = builder.call(ir.InlineAsm(function, f"ld.global.cs.{kind} $0, [$1];", f"={letter},l", side_effect=True), [at])
    return value if held is element else builder.trunc(value, element)  # PTX holds bytes in wider registers


def make_memory_ops(extending: Any, types: Any, cgutils: Any, space: int, any_in_sector: Any) -> MemoryOps:
    """The operations on `space`, an LLVM address space: 1 is a GPU's global memory, 0 a CPU's.

    Args:
        extending: `numba.extending` or `numba.cuda.extending`.
        types: the type module of the same Numba.
        cgutils: the code generation module of the same Numba.
        space: the address space of every buffer.
        near: this target's way to ask the neighbours; see `MemoryOps`.
    """
    word = ir.IntType(64)

    def pointer(builder: Any, address: Any, index: Any, element: Any) -> Any:
        if index.type.width < 64:
            index = builder.sext(index, word)
        return builder.gep(builder.inttoptr(address, element.as_pointer(space)), [index])

    def row(builder: Any, args: Any, width: int, element: Any) -> Any:
        """The first element of row args[1] behind address args[0]."""
        index = builder.sext(args[1], word) if args[1].type.width < 64 else args[1]
        return pointer(builder, args[0], builder.mul(index, word(width)), element)

    def pieces(width: int, element: Any) -> tuple[int, list[int]]:
        """How many elements an access holds, and where each begins: 16 or 8 bytes wide if rows keep that alignment. On a CPU it
        holds one: a compiler puts those of several rows side by side, but no rows.
        """
        wide = next(k for k in (4, 2, 1) if width % k == 0) if space and str(element) in ("float", "i32") else 1
        return wide, list(range(0, width, wide))

    @extending.intrinsic
    def load(typingctx: Any, address: Any, index: Any, dtype: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            model = context.data_model_manager[dtype.dtype]
            return model.from_data(builder, builder.load(pointer(builder, args[0], args[1], model.get_data_type())))

        return dtype.dtype(address, index, dtype), codegen

    @extending.intrinsic
    def load_streaming(typingctx: Any, address: Any, index: Any, dtype: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            model = context.data_model_manager[dtype.dtype]
            at = pointer(builder, args[0], args[1], model.get_data_type())
            return model.from_data(builder, fetched_once(builder, at) if space == 1 else builder.load(at))

        return dtype.dtype(address, index, dtype), codegen

    @extending.intrinsic
    def store(typingctx: Any, address: Any, index: Any, value: Any, dtype: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            model = context.data_model_manager[dtype.dtype]
            value = model.as_data(builder, context.cast(builder, args[2], sig.args[2], dtype.dtype))
            builder.store(value, pointer(builder, args[0], args[1], model.get_data_type()))

        return types.void(address, index, value, dtype), codegen

    @extending.intrinsic
    def load_row(typingctx: Any, address: Any, index: Any, like: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            element = context.get_data_type(like.dtype)
            wide, starts = pieces(len(like), element)
            base, values = row(builder, args, len(like), element), []
            for j in starts:
                at = builder.gep(base, [word(j)])
                if wide == 1:
                    values.append(builder.load(at))
                    continue
                vector = builder.load(builder.bitcast(at, ir.VectorType(element, wide).as_pointer(space)), align=4 * wide)
                values += [builder.extract_element(vector, ir.IntType(32)(k)) for k in range(wide)]
            return context.make_tuple(builder, sig.return_type, values)

        return types.UniTuple(like.dtype, len(like))(address, index, like), codegen

    @extending.intrinsic
    def store_row(typingctx: Any, address: Any, index: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            element = context.get_data_type(values.dtype)
            wide, starts = pieces(len(values), element)
            base, items = row(builder, args, len(values), element), cgutils.unpack_tuple(builder, args[2])
            for j in starts:
                at = builder.gep(base, [word(j)])
                if wide == 1:
                    builder.store(items[j], at)
                    continue
                vector = ir.Constant(ir.VectorType(element, wide), ir.Undefined)
                for k in range(wide):
                    vector = builder.insert_element(vector, items[j + k], ir.IntType(32)(k))
                builder.store(vector, builder.bitcast(at, vector.type.as_pointer(space)), align=4 * wide)

        return types.void(address, index, values), codegen

    def column(builder: Any, args: Any, width: int) -> list[Any]:
        """Where the elements of a column are that begins at element args[1] and goes on by args[2]."""
        element = ir.FloatType()
        base, stride = pointer(builder, args[0], args[1], element), args[2]
        stride = builder.sext(stride, word) if stride.type.width < 64 else stride
        return [builder.gep(base, [builder.mul(stride, word(j))]) for j in range(width)]

    @extending.intrinsic
    def load_column(typingctx: Any, address: Any, start: Any, stride: Any, like: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            values = [builder.load(at) for at in column(builder, args, len(like))]
            return context.make_tuple(builder, sig.return_type, values)

        return types.UniTuple(types.float32, len(like))(address, start, stride, like), codegen

    @extending.intrinsic
    def store_column(typingctx: Any, address: Any, start: Any, stride: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            items = cgutils.unpack_tuple(builder, args[3])
            for at, value in zip(column(builder, args, len(items)), items, strict=True):
                builder.store(value, at)

        return types.void(address, start, stride, types.UniTuple(types.float32, len(values))), codegen

    @extending.intrinsic
    def to_floats(typingctx: Any, values: Any, like: Any) -> Any:
        if not hasattr(values, "types") or len(values) < len(like):
            raise TypeError(f"the environment's space has {len(like)} features, and its function gives {values}")

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kinds = [getattr(kind, "literal_type", kind) for kind in sig.args[0].types]
            items = [
                context.cast(builder, value, kind, types.float32)
                for kind, value in zip(kinds[: len(like)], cgutils.unpack_tuple(builder, args[0]), strict=False)
            ]
            return context.make_tuple(builder, sig.return_type, items)

        return types.UniTuple(types.float32, len(like))(values, like), codegen

    @extending.intrinsic
    def store_streaming(typingctx: Any, address: Any, index: Any, value: Any, dtype: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            model = context.data_model_manager[dtype.dtype]
            value = model.as_data(builder, context.cast(builder, args[2], sig.args[2], dtype.dtype))
            evicted_first(builder, pointer(builder, args[0], args[1], model.get_data_type()), [value])

        return types.void(address, index, value, dtype), codegen

    @extending.intrinsic
    def store_row_streaming(typingctx: Any, address: Any, index: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            element = context.get_data_type(values.dtype)
            wide, starts = pieces(len(values), element)
            base, items = row(builder, args, len(values), element), cgutils.unpack_tuple(builder, args[2])
            for j in starts:
                evicted_first(builder, builder.gep(base, [word(j)]), items[j : j + wide])

        return types.void(address, index, values), codegen

    @extending.intrinsic
    def atomic_min(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            builder.atomic_rmw("umin", pointer(builder, args[0], args[1], word), args[2], "monotonic")

        return types.void(address, index, types.uint64), codegen

    @extending.intrinsic
    def atomic_add(typingctx: Any, address: Any, index: Any, by: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> None:
            builder.atomic_rmw("add", pointer(builder, args[0], args[1], ir.IntType(32)), args[2], "monotonic")

        return types.void(address, index, types.uint32), codegen

    own = (store_streaming, store_row_streaming) if space == 1 else (store, store_row)
    return MemoryOps(
        load, store, load_row, store_row, *own, atomic_min, atomic_add, any_in_sector, load_column, store_column, to_floats,
        load_streaming,
    )  # fmt: skip


@cache  # as Numba keeps each intrinsic for ever
def cpu_memory_ops() -> MemoryOps:
    """The operations on the CPU's memory, where every env is alone."""
    from numba import extending, njit, types
    from numba.core import cgutils

    @njit
    def any_in_sector(flag: bool) -> bool:
        return flag

    return make_memory_ops(extending, types, cgutils, 0, any_in_sector)
