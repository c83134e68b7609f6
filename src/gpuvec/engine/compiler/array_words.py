"""Words in arrays of any dtype, which kernel code reads and writes as tuples of integers: up to 16 bytes at once on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from gpuvec.engine.compiler.array_views import array_element_pointer
from gpuvec.engine.compiler.llvm import INT32
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def _vector_pointer(
    numba: NumbaApi,
    context: TargetContext,
    builder: ir.IRBuilder,
    sig: Signature,
    args: Sequence[ir.Value],
    words: NumbaType,
) -> tuple[ir.Value, int]:
    """Returns (pointer to a vector of `words`, its alignment in bytes) at element `args[1]` of the array `args[0]`."""
    element_type = context.get_data_type(words.dtype)
    element = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
    pointer = builder.bitcast(element, ir.VectorType(element_type, len(words)).as_pointer())
    # NumPy does not align the arrays of the simulator to 16 bytes.
    return pointer, len(words) * element_type.width // 8 if numba.is_gpu else 1


def make_load_words(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.load_words` to `numba`."""

    @numba.intrinsic
    def load_words(typingctx: TypingContext, array: NumbaType, start: NumbaType, like: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            pointer, alignment = _vector_pointer(numba, context, builder, sig, args, like)
            vector = builder.load(pointer, align=alignment)
            words = [builder.extract_element(vector, INT32(k)) for k in range(len(like))]
            return context.make_tuple(builder, sig.return_type, words)

        return numba.types.UniTuple(like.dtype, len(like))(array, start, like), codegen

    return load_words


def make_store_words(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.store_words` to `numba`."""

    @numba.intrinsic
    def store_words(typingctx: TypingContext, array: NumbaType, start: NumbaType, values: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            pointer, alignment = _vector_pointer(numba, context, builder, sig, args, values)
            vector = ir.Constant(pointer.type.pointee, ir.Undefined)
            for k, word in enumerate(numba.cgutils.unpack_tuple(builder, args[2])):
                vector = builder.insert_element(vector, word, INT32(k))
            builder.store(vector, pointer, align=alignment)

        return numba.types.void(array, start, values), codegen

    return store_words
