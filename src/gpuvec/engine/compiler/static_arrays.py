"""The Numba type of arrays whose shape is a constant, which are passed to functions as one pointer.

Numba passes an array as seven values or more, with two words that count references. A state of sixty arrays is then hundreds of
values for each function that takes it, and most of the time of a compilation was spent on moving them. Reads and writes of
single elements emit the same instructions as those of Numba's arrays. For everything else, such as slices, an array of Numba's
is made of the pointer and the constants.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from gpuvec.engine.compiler.llvm import INT64
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import NumbaType, Signature, TargetContext, TypingContext


@cache
def static_array_class(numba: NumbaApi) -> Any:
    """Declares the class of the types to `numba`, Numba or numba-cuda, and returns it.

    Args:
        numba: the modules that the class is declared with.
    """
    types = numba.types

    class StaticArray(types.IterableType):  # type: ignore[misc, name-defined]  # Numba has no annotations
        """A C-contiguous array of a constant shape, with integers in [0, bound) if `bound` is not 0."""

        def __init__(self, dtype: NumbaType, shape: tuple[int, ...], bound: int = 0, mutable: bool = True) -> None:
            self.dtype, self.shape, self.ndim, self.bound, self.mutable = dtype, shape, len(shape), bound, mutable
            qualities = (f", below {bound}" if bound else "") + ("" if mutable else ", readonly")
            super().__init__(f"StaticArray({dtype}, {shape}{qualities})")

        @property
        def numba_array(self) -> NumbaType:
            """The type of Numba's own array with these elements."""
            return types.Array(self.dtype, self.ndim, "C", readonly=not self.mutable)

        @property
        def iterator_type(self) -> NumbaType:
            """The type of an iterator over the rows."""
            return types.ArrayIterator(self.numba_array)

        def can_convert_to(self, typingctx: TypingContext, other: NumbaType) -> Any:
            """Returns Numba's kind of the conversion to another type, None if there is none."""
            return self.numba_array.can_convert_to(typingctx, other)

        def unify(self, typingctx: TypingContext, other: NumbaType) -> NumbaType | None:
            """Returns the type of a variable that is sometimes of this type and sometimes of another."""
            return self.numba_array.unify(typingctx, other.numba_array if isinstance(other, StaticArray) else other)

    pointer = numba.data_models.PrimitiveModel
    numba.extending.register_model(StaticArray)(
        lambda manager, kind: pointer(manager, kind, manager.lookup(kind.dtype).get_data_type().as_pointer())
    )
    _register_typing(numba, StaticArray)
    _register_elements(numba, StaticArray)

    @numba.extending.lower_cast(StaticArray, types.Array)
    def cast(
        context: TargetContext, builder: ir.IRBuilder, from_type: NumbaType, to_type: NumbaType, value: ir.Value
    ) -> ir.Value:
        return to_numba_array(context, builder, from_type, value)

    @numba.extending.lower_getattr_generic(StaticArray)
    def attribute(context: TargetContext, builder: ir.IRBuilder, array_type: NumbaType, array: ir.Value, name: str) -> ir.Value:
        numba_array = to_numba_array(context, builder, array_type, array)
        implementation = context.get_getattr(array_type.numba_array, name)
        return implementation(context, builder, array_type.numba_array, numba_array, name)

    return StaticArray


def element_address(context: TargetContext, builder: ir.IRBuilder, array_type: NumbaType, array: ir.Value) -> ir.Value:
    """Returns the address of the first element of an array.

    Args:
        context: generates code for Numba's types.
        builder: emits the instructions.
        array_type: the Numba type of `array`, of this module or of Numba.
        array: the array, as Numba passes it.
    """
    return array if is_static(array_type) else context.make_array(array_type)(context, builder, array).data


def is_static(array_type: NumbaType) -> bool:
    """Whether a Numba type is one of this module.

    Args:
        array_type: the type.
    """
    return hasattr(array_type, "numba_array")


def to_numba_array(context: TargetContext, builder: ir.IRBuilder, array_type: NumbaType, array: ir.Value) -> ir.Value:
    """Returns a static array as Numba's own array.

    Args:
        context: generates code for Numba's types.
        builder: emits the instructions.
        array_type: the type of this module.
        array: the array, as Numba passes it.
    """
    itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
    strides = [itemsize * step for step in _steps(array_type.shape)]
    numba_array = context.make_array(array_type.numba_array)(context, builder)
    members = {"data": array, "itemsize": INT64(itemsize), "meminfo": None}
    members |= {name: list(map(INT64, numbers)) for name, numbers in (("shape", array_type.shape), ("strides", strides))}
    context.populate_array(numba_array, **members)
    return numba_array._getvalue()  # as in the examples of Numba's documentation for extensions


def _steps(shape: tuple[int, ...]) -> list[int]:
    """How many elements apart the neighbors along each axis are."""
    steps = [1]
    for size in shape[:0:-1]:
        steps.insert(0, steps[0] * size)
    return steps


def _register_typing(numba: NumbaApi, static_array: Any) -> None:
    """Declares that operations return what they return for Numba's own array."""

    def infer(context: TypingContext, function: Any, array: NumbaType, *others: NumbaType) -> Signature | None:
        """Returns the signature of a call of `function`, None if the first argument is another array."""
        if not isinstance(array, static_array):
            return None
        sig = context.resolve_function_type(context.resolve_value_type(function), (array.numba_array, *others), {})
        return sig and numba.templates.Signature(sig.return_type, (array, *sig.args[1:]), None)

    declare = numba.extending.type_callable
    declare(operator.getitem)(lambda context: lambda array, index: infer(context, operator.getitem, array, index))
    declare(operator.setitem)(lambda context: lambda array, index, value: infer(context, operator.setitem, array, index, value))
    declare(len)(lambda context: lambda array: infer(context, len, array))

    @numba.extending.infer_getattr
    class _Attributes(numba.templates.AttributeTemplate):  # type: ignore[misc, name-defined]  # Numba has no annotations
        key = static_array

        def generic_resolve(self, array_type: NumbaType, name: str) -> NumbaType | None:
            return self.context.resolve_getattr(array_type.numba_array, name)


def _register_elements(numba: NumbaApi, static_array: Any) -> None:
    """Declares how elements are loaded and stored, and how parts of an array are accessed by way of Numba's own array."""
    types = numba.types

    def element(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value | None:
        """Returns a pointer to the element that the indices name; None if they name a part of the array."""
        array_type, index_type = sig.args[:2]
        is_tuple = isinstance(index_type, types.BaseTuple)
        index_types = index_type.types if is_tuple else (index_type,)
        if len(index_types) < array_type.ndim or not all(isinstance(kind, types.Integer) for kind in index_types):
            return None
        indices = numba.cgutils.unpack_tuple(builder, args[1]) if is_tuple else [args[1]]
        offset = INT64(0)
        axes = zip(index_types, indices, array_type.shape, _steps(array_type.shape), strict=True)
        for kind, index, size, step in axes:
            position = context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)
            if kind.signed:
                # The size for a negative index, else 0. LLVM ends at these instructions if it gets a select of unknown sizes.
                wrap = builder.and_(builder.ashr(position, INT64(63)), INT64(size))
                position = builder.add(position, wrap)
            offset = builder.add(offset, builder.mul(position, INT64(step)))
        return builder.gep(args[0], [offset])

    def delegate(
        function: Any, context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]
    ) -> ir.Value:
        """Calls `function` with Numba's own array."""
        numba_sig = sig.replace(args=(sig.args[0].numba_array, *sig.args[1:]))
        array = to_numba_array(context, builder, sig.args[0], args[0])
        return context.get_function(function, numba_sig)(builder, (array, *args[1:]))

    @numba.extending.lower_builtin(operator.getitem, static_array, types.Any)
    def getitem(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
        array_type, pointer = sig.args[0], element(context, builder, sig, args)
        if pointer is None:
            return delegate(operator.getitem, context, builder, sig, args)
        value = context.unpack_value(builder, array_type.dtype, pointer)
        if array_type.bound:
            value.set_metadata("range", builder.module.add_metadata([value.type(0), value.type(array_type.bound)]))
        return value

    @numba.extending.lower_builtin(operator.setitem, static_array, types.Any, types.Any)
    def setitem(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> Any:
        array_type, _, value_type = sig.args
        pointer = None if isinstance(value_type, types.Array) else element(context, builder, sig, args)
        if pointer is None:
            return delegate(operator.setitem, context, builder, sig, args)
        context.pack_value(builder, array_type.dtype, context.cast(builder, args[2], value_type, array_type.dtype), pointer)
        return None

    numba.extending.lower_builtin(len, static_array)(lambda context, builder, sig, args: INT64(sig.args[0].shape[0]))
    numba.extending.lower_builtin("getiter", static_array)(lambda *call: delegate("getiter", *call))
