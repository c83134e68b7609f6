"""Atomic updates of single elements of an array in kernel code, whose result does not depend on the order of threads.

On a CPU one thread runs an env, and in the simulator one thread runs at a time, so an update is a load and a store there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from gpuvec.engine.compiler.array_views import array_element_pointer
from gpuvec.engine.compiler.llvm import FLOAT, INT32
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext

COMPARISONS = {"min": "<", "max": ">"}  # {kind: how a new value that replaces the old one compares with it}


def make_atomic_update(numba: NumbaApi) -> Callable[[str], DeviceFunction]:
    """Declares `ArrayOps.atomic_update` to `numba`."""
    updates: dict[str, DeviceFunction] = {}

    def atomic_update(kind: str) -> DeviceFunction:
        if kind not in updates:
            updates[kind] = _make_update(numba, kind)
        return updates[kind]

    return atomic_update


def _make_update(numba: NumbaApi, kind: str) -> DeviceFunction:
    """`update(array, index, value)` as in `ArrayOps.atomic_update`."""

    @numba.intrinsic
    def update(typingctx: TypingContext, array: NumbaType, index: NumbaType, value: NumbaType) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
            pointer = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
            new = context.cast(builder, args[2], sig.args[2], array.dtype)
            if not numba.is_gpu:
                _update_alone(builder, pointer, new, kind)
            elif new.type == FLOAT:
                _update_float(builder, pointer, new, kind)
            else:
                builder.atomic_rmw(kind, pointer, new, "monotonic")

        return numba.types.void(array, index, value), codegen

    return update


def _update_alone(builder: ir.IRBuilder, pointer: ir.Value, new: ir.Value, kind: str) -> None:
    """Updates an element that no other thread writes."""
    old = builder.load(pointer)
    if kind == "add":
        builder.store(builder.add(old, new), pointer)
        return
    compare = builder.fcmp_ordered if new.type == FLOAT else builder.icmp_signed
    builder.store(builder.select(compare(COMPARISONS[kind], new, old), new, old), pointer)


def _update_float(builder: ir.IRBuilder, pointer: ir.Value, new: ir.Value, kind: str) -> None:
    """Updates a float by an atomic operation on its bits.

    Floats without the sign bit have the order of their bits as signed integers, and are larger than all others. Those with
    the sign bit have the reverse order of their bits as unsigned integers. So a minimum is the signed minimum of the bits if
    the new value has no sign bit, whatever the old one is, and their unsigned maximum if it has.
    """
    new_word, word = builder.bitcast(new, INT32), builder.bitcast(pointer, INT32.as_pointer())
    with builder.if_else(builder.icmp_signed(">=", new_word, INT32(0))) as (without_sign, with_sign):
        with without_sign:
            builder.atomic_rmw(kind, word, new_word, "monotonic")
        with with_sign:
            builder.atomic_rmw("umax" if kind == "min" else "umin", word, new_word, "monotonic")


def make_compare_exchange(numba: NumbaApi) -> DeviceFunction:
    """Declares `ArrayOps.compare_exchange` to `numba`."""
    int32 = numba.types.int32

    @numba.intrinsic
    def compare_exchange(
        typingctx: TypingContext, array: NumbaType, index: NumbaType, expected: NumbaType, value: NumbaType
    ) -> Intrinsic:
        def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> ir.Value:
            pointer = array_element_pointer(context, builder, sig.args[0], args[0], args[1])
            old, new = (context.cast(builder, args[k], sig.args[k], int32) for k in (2, 3))
            if numba.is_gpu:
                return builder.extract_value(builder.cmpxchg(pointer, old, new, "monotonic"), 0)
            current = builder.load(pointer)
            builder.store(builder.select(builder.icmp_signed("==", current, old), new, current), pointer)
            return current

        return int32(array, index, expected, value), codegen

    return compare_exchange
